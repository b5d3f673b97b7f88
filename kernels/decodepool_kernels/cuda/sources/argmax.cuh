// The largest logit of a row and its id, the lowest among equals; NaN is larger than all. What is compared is a key: logits are ordered as theirs are.
#pragma once
#include "common.cuh"
#include "step.cuh"

#define AHEAD 8  // times four logits that a thread asks for before it looks at the first

struct Best {
  u32 key, id;
};
#define NOTHING (Best{0, ~0u})

// -0 is as large as 0.
DEVICE u32 key_of(float logit) {
  const u32 bits = __float_as_uint(__fadd_rn(logit, 0.f));
  return logit != logit ? ~0u : (bits >> 31 ? ~bits : bits | 0x80000000u);
}

DEVICE float logit_of(u32 key) { return __uint_as_float(key == ~0u ? 0x7fffffffu : key >> 31 ? key & 0x7fffffffu : ~key); }

// NaN if either is.
DEVICE float larger(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

DEVICE float larger(float4 v) { return larger(larger(v.x, v.y), larger(v.z, v.w)); }

DEVICE bool is_largest(float logit, float most) { return logit == most | logit != logit; }

DEVICE Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a; }

// The best of what thread `nth` of `threads` looks at: fours in turn, and one of the logits that are left behind the last. Rows lie apart by whole fours.
DEVICE Best best_of_thread(const float* row, int vocabulary, int nth, int threads) {
  const float4* fours = (const float4*)row;
  const int last = vocabulary / 4 - 1, left = vocabulary - 1 - nth;
  Best best = nth < vocabulary % 4 ? Best{key_of(row[left]), (u32)left} : NOTHING;
  for (int first = nth; first <= last; first += AHEAD * threads) {
    float4 v[AHEAD];
    float most = MINUS_INFINITY;
    UNROLL for (int i = 0; i < AHEAD; i++) load_early(v[i], fours + min(first + i * threads, last));
    UNROLL for (int i = 0; i < AHEAD; i++) most = larger(most, larger(v[i]));
    int id = 0;
    UNROLL for (int i = AHEAD - 1; i >= 0; i--) {
      const int at = 4 * min(first + i * threads, last);
      id = is_largest(v[i].w, most) ? at + 3 : id;
      id = is_largest(v[i].z, most) ? at + 2 : id;
      id = is_largest(v[i].y, most) ? at + 1 : id;
      id = is_largest(v[i].x, most) ? at : id;
    }
    best = better(best, {key_of(most), (u32)id});
  }
  return best;
}

DEVICE Best best_of_warp(Best best) {
  const u32 key = __reduce_max_sync(~0u, best.key);
  return {key, __reduce_min_sync(~0u, best.key == key ? best.id : ~0u)};
}

// Of a block of `THREADS`, known to its first warp.
DEVICE Best best_of_block(Best best, Best (&warps)[THREADS / 32]) {
  const int lane = threadIdx.x & 31;
  best = best_of_warp(best);
  if (lane == 0) warps[threadIdx.x >> 5] = best;
  __syncthreads();
  return best_of_warp(lane < THREADS / 32 ? warps[lane] : NOTHING);
}

// The id becomes the last token of the row's slot.
DEVICE void answer(Answer* answers, const int* step, int wanted, int* last_tokens, int slot, Best best) {
  answers_of(answers, step)[wanted] = {(int)best.id, logit_of(best.key), 0};
  last_tokens[slot] = best.id;
}
