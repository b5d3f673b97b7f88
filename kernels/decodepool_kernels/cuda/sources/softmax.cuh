// The fold of attention's states (m, l, O): the only one there is. A state that holds nothing for a row (m = -inf) leaves the other as it is, to the bit.
#pragma once
#include "common.cuh"

struct Weights {
  float kept, taken;
};

DEVICE float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Raise `m` to the larger of both; what the two states then weigh.
DEVICE Weights absorb(float& m, float other) {
  const float larger = fmaxf(m, other);
  const bool nothing = other == MINUS_INFINITY;
  const Weights w = {nothing ? 1.f : power_of_2(__fsub_rn(m, larger)), nothing ? -0.f : power_of_2(__fsub_rn(other, larger))};
  m = larger;
  return w;
}

DEVICE float folded(float a, float b, Weights w) { return fmaf(a, w.kept, __fmul_rn(b, w.taken)); }
