// A row of a product's part as the kernel behind it reads it: folded on the way in, with the bits of fold_slices, where its slices were left apart
// (APART); else as it lies in `plain`.
#pragma once
#include "common.cuh"

#define APART_SLICES 8

// The host's twin is products.Slices.
struct Slices {
  const float* sums;    // [slice][row][width]
  const float* scales;  // [slice][columns]
  const float* biases[3];
  i64 width;
  int columns, first[3];  // where each part begins in a row
};

DEVICE float fold_slice(float sum, float scale, float y) { return fmaf(sum, scale, y); }

DEVICE float2 fold_slice(float2 sum, float scale, float2 y) { return make_float2(fmaf(sum.x, scale, y.x), fmaf(sum.y, scale, y.y)); }

DEVICE float4 fold_slice(float4 sum, float scale, float4 y) {
  return make_float4(fmaf(sum.x, scale, y.x), fmaf(sum.y, scale, y.y), fmaf(sum.z, scale, y.z), fmaf(sum.w, scale, y.w));
}

DEVICE float biased(float y, float bias) { return __fadd_rn(y, bias); }

DEVICE float2 biased(float2 y, float2 bias) { return make_float2(__fadd_rn(y.x, bias.x), __fadd_rn(y.y, bias.y)); }

DEVICE float4 biased(float4 y, float4 bias) { return make_float4(__fadd_rn(y.x, bias.x), __fadd_rn(y.y, bias.y), __fadd_rn(y.z, bias.z), __fadd_rn(y.w, bias.w)); }

// `at` gives what a row holds from k on.
struct PartRow {
  const float* values;
#if APART
  const float* bias;
  i64 slice_stride;
  float scales[APART_SLICES];

  METHOD PartRow(const float*, const Slices& s, int part, int rows, int row)
      : values(s.sums + row * s.width + s.first[part]), bias(s.biases[part]), slice_stride(rows * s.width) {
    UNROLL for (int slice = 0; slice < APART_SLICES; slice++) scales[slice] = s.scales[slice * s.columns + row];
  }
  // A float, or two or four from a multiple of as many on.
  template <class Value> METHOD Value at(int k) const {
    Value sums[APART_SLICES], y = {};
    UNROLL for (int slice = 0; slice < APART_SLICES; slice++) load_early(sums[slice], (const Value*)(values + slice * slice_stride + k));
    UNROLL for (int slice = 0; slice < APART_SLICES; slice++) y = fold_slice(sums[slice], scales[slice], y);
    return bias == nullptr ? y : biased(y, *(const Value*)(bias + k));
  }
#else
  METHOD PartRow(const float* plain, const Slices&, int, int, int) : values(plain) {}
  template <class Value> METHOD Value at(int k) const { return *(const Value*)(values + k); }
#endif
};
