// silu(g) u = g / (1 + e^-g) u, with e^-g held at e^88, where the quotient is already nothing.
#pragma once
#include "common.cuh"

#define LEAST_NORMAL_GATE 0x1p-100f
#define LARGEST_NORMAL_GATE 80.f

DEVICE float gated(float gate, float up) {
  const float power = expf(fminf(-gate, 88.f));
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, power)), up);
}

// The same for gates of ordinary size, where nothing on the way to a quotient rounded once leaves the normal numbers: its division without a branch.
DEVICE float gated_normal(float gate, float up) {
  const float divisor = __fadd_rn(1.f, expf(-gate));
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  inverse = fmaf(inverse, fmaf(-divisor, inverse, 1.f), inverse);
  const float quotient = __fmul_rn(inverse, gate);
  return __fmul_rn(fmaf(inverse, fmaf(-divisor, quotient, gate), quotient), up);
}

// By a call: it is rare, and what runs each time stays short.
static __device__ __noinline__ float4 gated_any(float4 gate, float4 up) {
  return make_float4(gated(gate.x, up.x), gated(gate.y, up.y), gated(gate.z, up.z), gated(gate.w, up.w));
}

DEVICE float4 gated(float4 gate, float4 up) {
  const float least = fminf(fminf(fabsf(gate.x), fabsf(gate.y)), fminf(fabsf(gate.z), fabsf(gate.w)));
  const float largest = fmaxf(fmaxf(fabsf(gate.x), fabsf(gate.y)), fmaxf(fabsf(gate.z), fabsf(gate.w)));
  if (least >= LEAST_NORMAL_GATE && largest <= LARGEST_NORMAL_GATE)
    return make_float4(gated_normal(gate.x, up.x), gated_normal(gate.y, up.y), gated_normal(gate.z, up.z), gated_normal(gate.w, up.w));
  return gated_any(gate, up);
}
