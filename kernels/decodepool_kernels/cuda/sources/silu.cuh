// silu(g) u = g / (1 + e^-g) u, with e^-g held at e^88, where the quotient is already nothing.
#pragma once
#include "common.cuh"

DEVICE float gated(float gate, float up) {
  const float power = expf(fminf(-gate, 88.f));
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, power)), up);
}

DEVICE float4 gated(float4 gate, float4 up) {
  return make_float4(gated(gate.x, up.x), gated(gate.y, up.y), gated(gate.z, up.z), gated(gate.w, up.w));
}
