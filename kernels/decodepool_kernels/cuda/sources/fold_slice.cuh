// A slice of a row of attention, finished where it was left in chunks, and quantised by a thread block, a warp a group of its dims.
#pragma once
#include "partials.cuh"
#include "quantise.cuh"

DEVICE void fold_slice(const Partials& p, const float* finished, const Chunks& chunks, int slice, int row, const Activation& to, const Switches& switches) {
  __shared__ FoldTable tables[GROUPS];
  const Hold h = {slice, (int)threadIdx.x >> 5, GROUPS};
  float4 v[ITEMS];
  if (chunks.blocks == 0) {
    hold(v, h, WIDTH, [=](int k) { return *(const float4*)(finished + k); });
  } else {
    UNROLL for (int i = 0; i < ITEMS; i++) {
      const int k = h.at(i), first = k - 4 * (int)(threadIdx.x & 31);
      v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (first >= WIDTH) continue;
      const float4 folded = folded_four(p, chunks, first, switches, tables[h.warp]);
      if (k < WIDTH) v[i] = folded;
    }
  }
  quantise_held(v, h, largest_of_block(v, h), WIDTH, row, to);
}
