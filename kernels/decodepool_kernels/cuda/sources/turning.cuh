// What a row that is a run of its own brings to attention as its product left it (TURNING): attention turns its queries and its key, and keeps key and
// value in the row's newest page, in place of rope_append and with its bits.
#pragma once
#include "append.cuh"
#include "rotate.cuh"

// The host's twin is attention_programs.Turning.
struct Turning {
  const float *k, *v;
  i64 stride;
  const float2* table;
  int half, interleaved;
};

// Of one row and kv head, in shared memory.
struct Brought {
  float2 turns[HEAD_DIM / 2];
  float key[HEAD_DIM], value[HEAD_DIM];

  // By all workers: turn `heads` heads in place, `stride` floats apart.
  METHOD void turn(float* from, int heads, int stride, const Turning& t) {
    for (int i = threadIdx.x; i < heads * (HEAD_DIM / 2); i += WORKERS) {
      float* head = from + i / (HEAD_DIM / 2) * stride;
      const int pair = i % (HEAD_DIM / 2);
      if (pair >= t.half) continue;
      const Pair at = pair_of(pair, t.half, t.interleaved);
      const float2 turned = rotated(head[at.a], head[at.b], turns[pair]);
      head[at.a] = turned.x, head[at.b] = turned.y;
    }
  }

  // The key has been turned: a thread's dims, to the halves of a page.
  METHOD void put(u8* keys, u8* values, int token) const {
    for (int dim = APPENDED_DIMS * threadIdx.x; dim < HEAD_DIM; dim += APPENDED_DIMS * WORKERS) {
#if KV_BITS == 8
      Appended(key[dim], value[dim]).put(keys, values, HEAD_DIM, token, dim);
#else
      Appended(*(const float4*)(key + dim), *(const float4*)(value + dim)).put(keys, values, HEAD_DIM, token, dim);
#endif
    }
  }
};
