// One block of 32 inputs of 16 outputs times 8 rows, added to its slice's sums: the one arithmetic of every matrix product.
//
//   s = chain of k16 tensor-core steps from zero over the planes, hi first        (SUB_BLOCK 16: one chain for each half)
//   acc = fma(s, scale, acc); acc = fma(sum of the activations, minimum, acc)      (16-bit weights: acc = acc + s)
#pragma once
#include "activation.cuh"
#include "weights.cuh"

struct Columns {
  uint4 planes[PLANES];
  float4 sums;
};

DEVICE void chain(float (&s)[4], const u32* a, u32 b0, u32 b1) {
#if BFLOAT
  multiply_bf16(s, a[0], a[1], a[2], a[3], b0, b1);
#else
  multiply_f16(s, a[0], a[1], a[2], a[3], b0, b1);
#endif
}

DEVICE void add_scaled(float (&acc)[4], const float (&s)[4], float2 scale) {
  acc[0] = fmaf(s[0], scale.x, acc[0]);
  acc[1] = fmaf(s[1], scale.x, acc[1]);
  acc[2] = fmaf(s[2], scale.y, acc[2]);
  acc[3] = fmaf(s[3], scale.y, acc[3]);
}

// `scales[plane][part]` of the record.
DEVICE void fold_block(float (&acc)[4], const u32 (&a)[8], const Columns& x, const float2 (&scales)[1 + HAS_MINIMUM][PARTS]) {
#if SUB_BLOCK == 32
  float s[4] = {0.f, 0.f, 0.f, 0.f};
  UNROLL for (int plane = 0; plane < PLANES; plane++) {
    chain(s, a, x.planes[plane].x, x.planes[plane].y);
    chain(s, a + 4, x.planes[plane].z, x.planes[plane].w);
  }
#if CODE_BITS == 16
  UNROLL for (int i = 0; i < 4; i++) acc[i] = __fadd_rn(acc[i], s[i]);
#else
  add_scaled(acc, s, scales[0][0]);
#endif
#if HAS_MINIMUM
  const float first = __fadd_rn(x.sums.x, x.sums.y), second = __fadd_rn(x.sums.z, x.sums.w), sums[4] = {first, second, first, second};
  add_scaled(acc, sums, scales[1][0]);
#endif
#else
  UNROLL for (int part = 0; part < 2; part++) {
    float s[4] = {0.f, 0.f, 0.f, 0.f};
    UNROLL for (int plane = 0; plane < PLANES; plane++)
      chain(s, a + 4 * part, part ? x.planes[plane].z : x.planes[plane].x, part ? x.planes[plane].w : x.planes[plane].y);
    add_scaled(acc, s, scales[0][part]);
#if HAS_MINIMUM
    const float first = part ? x.sums.y : x.sums.x, second = part ? x.sums.w : x.sums.z, sums[4] = {first, second, first, second};
    add_scaled(acc, sums, scales[1][part]);
#endif
  }
#endif
}

DEVICE void load_scales(float2 (&scales)[1 + HAS_MINIMUM][PARTS], const u8* record, int g) {
#if CODE_BITS != 16
  UNROLL for (int plane = 0; plane < 1 + HAS_MINIMUM; plane++)
    UNROLL for (int part = 0; part < PARTS; part++) scales[plane][part] = scale_pair(record, plane, part, g);
#endif
}
