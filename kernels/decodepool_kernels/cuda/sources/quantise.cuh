// Making activations: how a row is held in registers, and how a warp quantises its slice of it.
#pragma once
#include "activation.cuh"

// The power of two that lifts `largest` to [2^13, 2^14), held where it and its inverse are normal numbers.
DEVICE int lifting_exponent(float largest) {
  const int exponent = (int)((__float_as_uint(largest) >> 23) & 255) - 127;
  return min(max(13 - exponent, -120), largest == 0.f ? 0 : 120);
}

DEVICE float power_of_two(int exponent) { return __uint_as_float((u32)(127 + exponent) << 23); }

DEVICE float4 scaled(float4 v, float factor) {
  return make_float4(__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor), __fmul_rn(v.w, factor));
}

// Write the planes of four values; `to` is their place in the first plane.
DEVICE void store_planes(u8* to, int plane_bytes, float4 v) {
  UNROLL for (int plane = 0; plane < PLANES; plane++) {
#if PLANES == 2
    const u32 first = f16_pair(v.x, v.y), second = f16_pair(v.z, v.w);
    const float4 kept = make_float4(low_f16(first), high_f16(first), low_f16(second), high_f16(second));
#else
    const u32 first = bf16_pair(v.x, v.y), second = bf16_pair(v.z, v.w);
    const float4 kept = make_float4(low_bf16(first), high_bf16(first), low_bf16(second), high_bf16(second));
#endif
    u8* place = to + plane * plane_bytes;
    if (CORES) *(u32*)place = first, *(u32*)((u64)place ^ 16) = second;
    else *(uint2*)place = make_uint2(first, second);
    v = make_float4(__fsub_rn(v.x, kept.x), __fsub_rn(v.y, kept.y), __fsub_rn(v.z, kept.z), __fsub_rn(v.w, kept.w));
  }
}

// What a warp holds of a row: `v[i]` are 4 values a lane of the slice's groups `warp`, `warp + warps`, ... of 128.
struct Hold {
  int slice, warp, warps;
  METHOD int at(int item) const { return slice * 128 + 4 * (threadIdx.x & 31) + SLICE_STRIDE * (item * warps + warp); }
};

// Whether what a warp holds from k on is of the row: the compiler knows where it knows the width, and a row is of whole strides.
DEVICE bool is_held(const Hold& h, int k, int width) { return width == ITEMS * h.warps * SLICE_STRIDE || k < width; }

template <class Load> DEVICE void hold(float4 (&v)[ITEMS], const Hold& h, int width, Load load) {
  UNROLL for (int i = 0; i < ITEMS; i++) {
    const int k = h.at(i);
    v[i] = is_held(h, k, width) ? load(k) : make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// Where a lane writes what it holds of a row, found before there is anything to write.
struct Places {
  u8 *planes, *sums;  // of the first item
  float* scale;
  i64 planes_apart, sums_apart;  // of two items
  int plane_bytes;

  METHOD Places(const Activation& a, const Hold& h, int row)
      : scale(a.scales + h.slice * a.columns + row), planes_apart((i64)h.warps * 32 * a.columns * (PLANES * ROW_BYTES)), plane_bytes(a.plane_bytes()) {
    const int lane = threadIdx.x & 31, t = lane & 3, half = (lane >> 2) & 1, block = h.at(0) >> 5;
    const int at = CORES ? (row & 7) * 64 + (2 * half ^ row >> 1 & 3) * 16 + t * 4 : ((row & 7) * 4 + t) * 16 + half * 8;
    planes = fragments_at(a, block, row >> 3) + at;
    if (SUMS == 1) sums = (u8*)(block_sums_at(a, block, row) + half), sums_apart = (i64)h.warps * 32 * a.columns * 8;
    if (SUMS == 2) {
      sums = group_sums_at(a, block >> 2, row >> 3) + (t & 1) * (GROUP_SUM_BYTES / 2) + (row & 7) * 16 + (lane >> 3) * 4;
      sums_apart = (i64)h.warps * 8 * a.row_tiles() * GROUP_SUM_BYTES;
    }
  }
};

// Write the sum of 16 values, which four lanes have, as hi and lo: a warp has all 8 of a group, and a lane writes two.
DEVICE void store_group_sum(u8* to, float sum) {
  const int lane = threadIdx.x & 31;
  const float scaled = __fmul_rn(sum, 0.0625f), high = low_f16(f16_pair(scaled, 0.f)), kept = (lane & 1) == 0 ? scaled : __fsub_rn(scaled, high);
  const u32 pair = f16_pair(kept, __shfl_down_sync(~0u, kept, 4));
  if ((lane & 6) == 0) *(u32*)to = pair;
}

// The largest magnitude of what a warp holds.
DEVICE float largest_held(const float4 (&v)[ITEMS]) {
  float largest = 0.f;
  UNROLL for (int i = 0; i < ITEMS; i++)
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
  return warp_largest(largest);
}

// The same of all warps of a block, which hold one slice.
DEVICE float largest_of_block(const float4 (&v)[ITEMS], const Hold& h) {
  __shared__ float warps[32];
  const int lane = threadIdx.x & 31;
  const float own = largest_held(v);
  if (lane == 0) warps[h.warp] = own;
  __syncthreads();
  return warp_largest(lane < h.warps ? warps[lane] : 0.f);
}

// Write what a warp holds of a slice whose largest magnitude is `largest`.
DEVICE void quantise_held(const float4 (&v)[ITEMS], const Hold& h, float largest, int width, const Places& to) {
  const int lane = threadIdx.x & 31, exponent = PLANES == 2 ? lifting_exponent(largest) : 0;
  UNROLL for (int i = 0; i < ITEMS; i++) {
    const int k = h.at(i);
    const float4 lifted = scaled(v[i], power_of_two(exponent));
    float sum = __fadd_rn(__fadd_rn(lifted.x, lifted.y), __fadd_rn(lifted.z, lifted.w));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    if (SUMS == 2 && is_held(h, k - 4 * lane, width)) store_group_sum(to.sums + i * to.sums_apart, sum);
    if (!is_held(h, k, width)) continue;
    store_planes(to.planes + i * to.planes_apart, to.plane_bytes, lifted);
    if (SUMS == 1 && (lane & 3) == 0) *(float*)(to.sums + i * to.sums_apart) = sum;
  }
  if (lane == 0 && h.warp == 0) *to.scale = power_of_two(-exponent);
}

DEVICE void quantise_held(const float4 (&v)[ITEMS], const Hold& h, float largest, int width, int row, const Activation& a) {
  quantise_held(v, h, largest, width, Places(a, h, row));
}
