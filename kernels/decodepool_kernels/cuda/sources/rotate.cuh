// a' = fma(a, c, -(b s)), b' = fma(a, s, b c).
#pragma once
#include "common.cuh"

DEVICE float2 rotated(float a, float b, float2 turn) {
  return make_float2(fmaf(a, turn.x, -__fmul_rn(b, turn.y)), fmaf(a, turn.y, __fmul_rn(b, turn.x)));
}

struct Pair {
  int a, b;
};

// The dims of pair `i` of a head: those that turn together, then the others two by two.
DEVICE Pair pair_of(int i, int half, int interleaved) {
  if (i >= half || interleaved) return {2 * i, 2 * i + 1};
  return {i, i + half};
}
