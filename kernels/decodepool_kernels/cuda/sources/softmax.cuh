// What attention's programs share: halves of floats, and the fold of states (m, l, O), the only one there is. A state that holds nothing for a row
// (m = -inf) leaves the other as it is, to the bit.
#pragma once
#include "common.cuh"

#define FOLDED_BLOCKS 8      // of a group
#define ONES 0x3c003c00u   // a pair of halves

// Two floats as pairs of halves, high and low: 22 bits of each.
DEVICE void split(float first, float second, u32& high, u32& low) {
  high = f16_pair(first, second);
  low = f16_pair(__fsub_rn(first, low_f16(high)), __fsub_rn(second, high_f16(high)));
}

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
