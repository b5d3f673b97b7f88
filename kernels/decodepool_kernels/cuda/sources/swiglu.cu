// out = silu(gate) up, four values a thread.
#include "silu.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256) swiglu(const float* gate, const float* up, float* out, i64 stride, int width, const int* step) {
  let_next_start();
  await_previous();
  const int k = 4 * (blockIdx.x * 256 + threadIdx.x);
  if ((int)blockIdx.y >= step[ROWS] || k >= width) return;
  const i64 at = blockIdx.y * stride + k;
  *(float4*)(out + at) = gated(*(const float4*)(gate + at), *(const float4*)(up + at));
}
