// The states of a row's chunks folded in order: blocks into groups of 8, groups into the row. What the folds weigh depends on the largest scores alone: a
// warp finds it for 32 chunks of a head at once, a lane a chunk. Here a warp folds 128 dims, four a lane; with few rows a thread folds one (fold_cluster.cu).
// HEADS of HEAD_DIM are a row: where a state lies is an address and a constant.
#pragma once
#include "switches.cuh"

#define FOLD_DIMS 128
#define FOLD_CHUNKS 32
#ifndef FOLD_LOADS
#define FOLD_LOADS 16  // states on their way at once
#endif
#define FOLD_HEADS (HEAD_DIM % FOLD_DIMS == 0 ? 1 : FOLD_DIMS % HEAD_DIM == 0 ? FOLD_DIMS / HEAD_DIM : (FOLD_DIMS - 2) / HEAD_DIM + 2)  // that 128 dims may touch
#define WIDTH (HEADS * HEAD_DIM)

// What attention left of a row, read from the step alone: it may be asked for before the kernels ahead have ended.
struct Chunks {
  int blocks, first, count, unseen;  // the first `unseen` hold nothing, not even a state
  METHOD Chunks(const int* step, int row, const Switches& switches)
      : blocks(row_array(step, CHUNK_BLOCKS)[row]), first(row_array(step, PARTIALS)[row]), count(0), unseen(0) {
    if (blocks) count = row_array(step, POSITIONS)[row] / (PAGE_TOKENS * blocks) + 1;
    if (WINDOW && blocks) unseen = switches.first_block(row_array(step, POSITIONS)[row]) / blocks;
  }

  // The first chunk of the first eight that hold a state.
  METHOD int begin() const { return WINDOW ? unseen / FOLDED_BLOCKS * FOLDED_BLOCKS : 0; }
};

struct Partials {
  const float* o;
  const float2* ml;
};

// By head: what each chunk's state, with its sum beside it, and each group's, weigh; the row's largest score so far.
struct FoldTable {
  float4 chunks[FOLD_HEADS][FOLD_CHUNKS];
  Weights groups[FOLD_HEADS][FOLD_CHUNKS / FOLDED_BLOCKS];
  float largest[FOLD_HEADS];
};

// A lane's chunk of the batch, nothing beyond the last. Takes and returns the largest score of the row so far.
DEVICE float weigh_chunks(FoldTable& table, int head, float2 ml, bool are_groups, float total_m) {
  const int lane = threadIdx.x & 31, group = lane / FOLDED_BLOCKS, place = lane % FOLDED_BLOCKS;
  float within = ml.x;  // the largest of the lane's eight, up to its own
  UNROLL for (int far = 1; far < FOLDED_BLOCKS; far *= 2) {
    const float other = __shfl_up_sync(~0u, within, far);
    if (place >= far) within = fmaxf(other, within);
  }
  float ahead = __shfl_up_sync(~0u, within, 1), earlier = total_m;  // of what is before it, of the eights before its own
  UNROLL for (int other = 0; other < FOLD_CHUNKS / FOLDED_BLOCKS; other++) {
    total_m = fmaxf(total_m, __shfl_sync(~0u, within, other * FOLDED_BLOCKS + FOLDED_BLOCKS - 1));
    if (other < group) earlier = total_m;
  }
  if (place == 0) ahead = MINUS_INFINITY;
  if (are_groups) ahead = fmaxf(earlier, ahead);
  const Weights w = absorb(ahead, ml.x);
  table.chunks[head][lane] = make_float4(w.kept, w.taken, ml.y, 0.f);
  if (are_groups) return total_m;
  const Weights whole = absorb(earlier, within);
  if (place == FOLDED_BLOCKS - 1) table.groups[head][group] = whole;
  return total_m;
}

struct Folding {
  float4 o;
  float l;
  METHOD void fold(float4 other, float other_l, Weights w) {
    o = make_float4(folded(o.x, other.x, w), folded(o.y, other.y, w), folded(o.z, other.z, w), folded(o.w, other.w, w));
    l = folded(l, other_l, w);
  }
};

// Chunks `begin`, `begin` + 1, ... of the heads that the dims from `first` on touch: a lane's own of each.
struct Scores {
  float2 own[FOLD_HEADS];

  METHOD Scores(const Partials& p, const Chunks& chunks, int first, int begin) {
    const int lane = threadIdx.x & 31, first_head = first / HEAD_DIM;
    const bool is_seen = lane < min(chunks.count - begin, FOLD_LOADS) && (!WINDOW || begin + lane >= chunks.unseen);
    UNROLL for (int nth = 0; nth < FOLD_HEADS; nth++)
      own[nth] = is_seen && first_head + nth < HEADS ? p.ml[(i64)(chunks.first + begin + lane) * HEADS + first_head + nth] : make_float2(MINUS_INFINITY, 0.f);
  }

  METHOD void weigh(FoldTable& table, bool are_groups, bool is_first) const {
    __syncwarp();
    UNROLL for (int nth = 0; nth < FOLD_HEADS; nth++) {
      const float largest = weigh_chunks(table, nth, own[nth], are_groups, is_first ? MINUS_INFINITY : table.largest[nth]);
      __syncwarp();
      if ((threadIdx.x & 31) == 0) table.largest[nth] = largest;
    }
    __syncwarp();
  }
};

// Four dims of a row that attention left in chunks, by a warp for the 128 from `first` on; `table` is the warp's own. Beyond the last chunk states are
// nothing, and leave what they fold into as it is.
DEVICE float4 folded_four(const Partials& p, const Chunks& chunks, int first, const Switches& switches, FoldTable& table) {
  const int dim = first + 4 * (threadIdx.x & 31), head = min(dim / HEAD_DIM, HEADS - 1), nth = head - first / HEAD_DIM;
  const bool are_groups = chunks.blocks == FOLDED_BLOCKS;
  const float* from = p.o + (i64)chunks.first * WIDTH + min(dim, WIDTH - 4);
  const Folding nothing = {make_float4(0.f, 0.f, 0.f, 0.f), 0.f};
  Folding total = nothing;
  for (int begin = chunks.begin(); begin < chunks.count; begin += FOLD_LOADS) {
    const Scores scores(p, chunks, first, begin);
    asm volatile("" ::: "memory");  // scores are asked for first: they are waited for first
    const float* at = from + (i64)begin * WIDTH;
    float4 values[FOLD_LOADS];
    UNROLL for (int i = 0; i < FOLD_LOADS; i++) {
      if (i % FOLDED_BLOCKS == 0 && begin + i >= chunks.count) break;
      values[i] = begin + i < chunks.count && (!WINDOW || begin + i >= chunks.unseen) ? *(const float4*)(at + i * WIDTH) : nothing.o;
    }
    scores.weigh(table, are_groups, begin == chunks.begin());
    UNROLL for (int eight = 0; eight < FOLD_LOADS / FOLDED_BLOCKS; eight++) {
      if (begin + eight * FOLDED_BLOCKS >= chunks.count) break;
      Folding group = nothing;
      UNROLL for (int i = eight * FOLDED_BLOCKS; i < (eight + 1) * FOLDED_BLOCKS; i++) {
        const float4 w = table.chunks[nth][i];
        if (are_groups) total.fold(values[i], w.z, {w.x, w.y});
        else group.fold(values[i], w.z, {w.x, w.y});
      }
      if (!are_groups) total.fold(group.o, group.l, table.groups[nth][eight]);
    }
  }
  if (SINKS) {
    float m = table.largest[nth], l = total.l;
    const Weights w = switches.absorb_sink(m, l, head);
    total.fold(nothing.o, 1.f, w);
  }
  const float inverse = __fdiv_rn(1.f, total.l);
  return make_float4(__fmul_rn(total.o.x, inverse), __fmul_rn(total.o.y, inverse), __fmul_rn(total.o.z, inverse), __fmul_rn(total.o.w, inverse));
}
