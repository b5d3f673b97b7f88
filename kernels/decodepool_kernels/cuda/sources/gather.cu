// Row r of out = the row of x whose logits are the r-th wanted.
#include "common.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256) gather(const float* x, float* out, i64 stride, int width, const int* step) {
  let_next_start();
  await_previous();
  const int k = 4 * (blockIdx.x * 256 + threadIdx.x), row = blockIdx.y;
  if (row >= step[WANTED] || k >= width) return;
  *(float4*)(out + row * stride + k) = *(const float4*)(x + row_array(step, WANTED_ROWS)[row] * stride + k);
}
