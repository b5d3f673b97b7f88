// a' = fma(a, c, -(b s)), b' = fma(a, s, b c).
#pragma once
#include "common.cuh"

DEVICE float2 rotated(float a, float b, float2 turn) {
  return make_float2(fmaf(a, turn.x, -__fmul_rn(b, turn.y)), fmaf(a, turn.y, __fmul_rn(b, turn.x)));
}
