// The root mean square of a vector held by 256 threads: thread i sums fma(v, v, .) over its values in order; a warp's lanes
// fold by the tree of exchanges 16, 8, 4, 2, 1; the 8 warps in order. r = 1 / sqrt(sum / width + epsilon).
#pragma once
#include "common.cuh"

DEVICE float4 added(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

DEVICE float4 multiplied(float4 a, float4 b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w));
}

// r of a vector of `width` floats; every thread of the block calls with its part, zeros past the width, and gets r.
template <int items> DEVICE float inverse_rms(const float4 (&v)[items], int width, float epsilon) {
  __shared__ float warps[8];
  float sum = 0.f;
  UNROLL for (int i = 0; i < items; i++)
    sum = fmaf(v[i].w, v[i].w, fmaf(v[i].z, v[i].z, fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, sum))));
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
  __syncthreads();
  float total = warps[0];
  UNROLL for (int warp = 1; warp < 8; warp++) total = __fadd_rn(total, warps[warp]);
  return __frcp_rn(__fsqrt_rn(__fadd_rn(total / (float)width, epsilon)));
}
