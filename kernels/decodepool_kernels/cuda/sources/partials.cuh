// The states of a row's chunks folded in order: blocks into groups of 8, groups into the row. 128 threads fold 128 dims, one each. What the folds
// weigh depends on the largest scores alone: a warp finds it for 32 chunks of a head at once, a lane a chunk.
#pragma once
#include "pages.cuh"
#include "softmax.cuh"
#include "step.cuh"

#define FOLD_DIMS 128
#define FOLD_CHUNKS 32
#define FOLD_HEADS 8  // that 128 dims may touch: heads have 16 dims or more

// What attention left of a row, read from the step alone: it may be asked for before the kernels ahead have ended.
struct Chunks {
  int blocks, first, count;
  METHOD Chunks(const int* step, int row) : blocks(row_array(step, CHUNK_BLOCKS)[row]), first(row_array(step, PARTIALS)[row]), count(0) {
    if (blocks) count = row_array(step, POSITIONS)[row] / (PAGE_TOKENS * blocks) + 1;
  }
};

struct Partials {
  const float* o;
  const float2* ml;
  int heads, head_dim;
};

// By head: what each chunk's state, with its sum beside it, and each group's, weigh; the row's largest score so far.
struct FoldTable {
  float4 chunks[FOLD_HEADS][FOLD_CHUNKS];
  Weights groups[FOLD_HEADS][FOLD_CHUNKS / FOLDED_BLOCKS];
  float largest[FOLD_HEADS];
};

// A lane's chunk of the batch. Takes and returns the largest score of the row so far.
DEVICE float weigh_chunks(FoldTable& table, int head, float2 ml, int count, bool are_groups, float total_m) {
  const int lane = threadIdx.x & 31, place = are_groups ? lane : lane % FOLDED_BLOCKS;
  float largest = ml.x;
  UNROLL for (int far = 1; far < 32; far *= 2) {
    const float other = __shfl_up_sync(~0u, largest, far);
    if (place >= far) largest = fmaxf(other, largest);
  }
  float before = __shfl_up_sync(~0u, largest, 1);
  if (place == 0) before = MINUS_INFINITY;
  if (are_groups) before = fmaxf(total_m, before);
  const Weights w = absorb(before, ml.x);
  table.chunks[head][lane] = make_float4(w.kept, w.taken, ml.y, 0.f);
  if (are_groups) return __shfl_sync(~0u, before, count - 1);
  for (int group = 0; group * FOLDED_BLOCKS < count; group++) {
    const Weights whole = absorb(total_m, __shfl_sync(~0u, before, min(group * FOLDED_BLOCKS + FOLDED_BLOCKS, count) - 1));
    if (lane == 0) table.groups[head][group] = whole;
  }
  return total_m;
}

struct Folding {
  float o, l;
  METHOD void fold(float other_o, float other_l, Weights w) { o = folded(o, other_o, w), l = folded(l, other_l, w); }
};

// One dim of a row that attention left in chunks, by all threads of the block: 128 of them have `first` and its dims, and a table, in common.
DEVICE float folded_dim(const Partials& p, const Chunks& chunks, int first, FoldTable& table) {
  const int self = threadIdx.x % FOLD_DIMS, lane = self & 31, dim = first + self, head = dim / p.head_dim, first_head = first / p.head_dim;
  const bool are_groups = chunks.blocks == FOLDED_BLOCKS, is_there = head < p.heads;
  Folding total = {0.f, 0.f}, group = {0.f, 0.f};
  for (int begin = 0; begin < chunks.count; begin += FOLD_CHUNKS) {
    const int count = min(FOLD_CHUNKS, chunks.count - begin);
    float values[FOLD_CHUNKS];
    UNROLL for (int i = 0; i < FOLD_CHUNKS; i++)
      if (i < count && is_there) values[i] = p.o[((i64)(chunks.first + begin + i) * p.heads + head) * p.head_dim + dim % p.head_dim];
    for (int nth = self / 32, other = first_head + nth; other < p.heads && other * p.head_dim < first + FOLD_DIMS; nth += 4, other += 4) {
      const float2 ml = lane < count ? p.ml[(i64)(chunks.first + begin + lane) * p.heads + other] : make_float2(MINUS_INFINITY, 0.f);
      const float largest = weigh_chunks(table, nth, ml, count, are_groups, begin ? table.largest[nth] : MINUS_INFINITY);
      __syncwarp();
      if (lane == 0) table.largest[nth] = largest;
    }
    __syncthreads();
    UNROLL for (int i = 0; i < FOLD_CHUNKS; i++) {
      if (i >= count || !is_there) break;
      const float4 w = table.chunks[head - first_head][i];
      (are_groups ? total : group).fold(values[i], w.z, {w.x, w.y});
      if (are_groups || (i % FOLDED_BLOCKS != FOLDED_BLOCKS - 1 && i != count - 1)) continue;
      total.fold(group.o, group.l, table.groups[head - first_head][i / FOLDED_BLOCKS]);
      group = {0.f, 0.f};
    }
    __syncthreads();
  }
  return __fmul_rn(total.o, __fdiv_rn(1.f, total.l));
}
