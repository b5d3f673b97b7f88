// The states of a row's chunks folded in order: blocks into groups of 8, groups into the row. A warp folds 128 dims, four a lane. What the folds weigh
// depends on the largest scores alone: the warp finds it for 32 chunks of a head at once, a lane a chunk.
#pragma once
#include "switches.cuh"

#define FOLD_DIMS 128
#define FOLD_CHUNKS 32
#define FOLD_LOADS 16  // states on their way at once
#define FOLD_HEADS 8  // that 128 dims may touch: heads have 16 dims or more

// What attention left of a row, read from the step alone: it may be asked for before the kernels ahead have ended.
struct Chunks {
  int blocks, first, count, unseen;  // the first `unseen` hold nothing, not even a state
  METHOD Chunks(const int* step, int row, const Switches& switches)
      : blocks(row_array(step, CHUNK_BLOCKS)[row]), first(row_array(step, PARTIALS)[row]), count(0), unseen(0) {
    if (blocks) count = row_array(step, POSITIONS)[row] / (PAGE_TOKENS * blocks) + 1;
    if (WINDOW && blocks) unseen = switches.first_block(row_array(step, POSITIONS)[row]) / blocks;
  }

  // The first chunk of the first table that holds a state.
  METHOD int begin() const { return WINDOW ? unseen / FOLD_CHUNKS * FOLD_CHUNKS : 0; }
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

// A lane's chunk of the batch, nothing beyond the last. Takes and returns the largest score of the row so far.
DEVICE float weigh_chunks(FoldTable& table, int head, float2 ml, bool are_groups, float total_m) {
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
  if (are_groups) return __shfl_sync(~0u, before, FOLD_CHUNKS - 1);
  UNROLL for (int group = 0; group < FOLD_CHUNKS / FOLDED_BLOCKS; group++) {
    const Weights whole = absorb(total_m, __shfl_sync(~0u, before, group * FOLDED_BLOCKS + FOLDED_BLOCKS - 1));
    if (lane == 0) table.groups[head][group] = whole;
  }
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

// Fill the table of the heads that the dims from `first` on touch with chunks `begin`, `begin` + 1, ...
DEVICE void fill_table(FoldTable& table, const Partials& p, const Chunks& chunks, int first, int begin) {
  const int lane = threadIdx.x & 31, first_head = first / p.head_dim, heads = min((first + FOLD_DIMS - 1) / p.head_dim + 1, p.heads) - first_head;
  __syncwarp();
  for (int nth = 0; nth < heads; nth++) {
    const bool is_seen = lane < chunks.count - begin && (!WINDOW || begin + lane >= chunks.unseen);
    const float2 ml = is_seen ? p.ml[(i64)(chunks.first + begin + lane) * p.heads + first_head + nth] : make_float2(MINUS_INFINITY, 0.f);
    const float largest = weigh_chunks(table, nth, ml, chunks.blocks == FOLDED_BLOCKS, begin != chunks.begin() ? table.largest[nth] : MINUS_INFINITY);
    __syncwarp();
    if (lane == 0) table.largest[nth] = largest;
  }
  __syncwarp();
}

// Four dims of a row that attention left in chunks, by a warp for the 128 from `first` on; `table` is the warp's own. Beyond the last chunk states are
// nothing, and leave what they fold into as it is.
DEVICE float4 folded_four(const Partials& p, const Chunks& chunks, int first, const Switches& switches, FoldTable& table) {
  const int dim = first + 4 * (threadIdx.x & 31), head = min(dim / p.head_dim, p.heads - 1), nth = head - first / p.head_dim, stride = p.heads * p.head_dim;
  const bool are_groups = chunks.blocks == FOLDED_BLOCKS;
  const float* from = p.o + (i64)chunks.first * stride + min(dim, stride - 4);
  const Folding nothing = {make_float4(0.f, 0.f, 0.f, 0.f), 0.f};
  Folding total = nothing, group = nothing;
  for (int begin = chunks.begin(); begin < chunks.count; begin += FOLD_LOADS) {
    const int in_table = begin % FOLD_CHUNKS;
    float4 values[FOLD_LOADS];
    UNROLL for (int i = 0; i < FOLD_LOADS; i++)
      values[i] = begin + i < chunks.count && (!WINDOW || begin + i >= chunks.unseen) ? *(const float4*)(from + (i64)(begin + i) * stride) : nothing.o;
    if (in_table == 0) fill_table(table, p, chunks, first, begin);
    const float4* weights = table.chunks[nth] + in_table;
    if (are_groups) {
      UNROLL for (int i = 0; i < FOLD_LOADS; i++) total.fold(values[i], weights[i].z, {weights[i].x, weights[i].y});
      continue;
    }
    UNROLL for (int i = 0; i < FOLD_LOADS; i++) {
      group.fold(values[i], weights[i].z, {weights[i].x, weights[i].y});
      if (i % FOLDED_BLOCKS != FOLDED_BLOCKS - 1) continue;
      total.fold(group.o, group.l, table.groups[nth][(in_table + i) / FOLDED_BLOCKS]);
      group = nothing;
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
