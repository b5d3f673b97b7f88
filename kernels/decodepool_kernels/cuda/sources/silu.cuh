// silu(g) u = g / (1 + e^-g) u, with e^-g held at e^88, where the quotient is already nothing.
#pragma once
#include "common.cuh"

DEVICE float gated(float gate, float up) {
  const float power = expf(fminf(-gate, 88.f));
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, power)), up);
}

#define MOST_PLAIN 80.f       // e^80 < 2^116
#define LEAST_PLAIN 0x1p-100f

DEVICE bool is_plain(float gate) { return fabsf(gate) >= LEAST_PLAIN & fabsf(gate) <= MOST_PLAIN; }

DEVICE float plain_gated(float gate, float up) {
  return __fmul_rn(quotient(gate, __fadd_rn(1.f, expf(-gate))), up);
}

DEVICE float4 gated(float4 gate, float4 up) {
  return make_float4(gated(gate.x, up.x), gated(gate.y, up.y), gated(gate.z, up.z), gated(gate.w, up.w));
}

// Four side by side, where none is rare: a division's branch keeps each behind the one before. For few rows: it takes more instructions.
DEVICE float4 gated_abreast(float4 gate, float4 up) {
  if (is_plain(gate.x) & is_plain(gate.y) & is_plain(gate.z) & is_plain(gate.w))
    return make_float4(plain_gated(gate.x, up.x), plain_gated(gate.y, up.y), plain_gated(gate.z, up.z), plain_gated(gate.w, up.w));
  return gated(gate, up);
}
