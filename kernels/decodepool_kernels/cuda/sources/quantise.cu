// x to an activation, a block a slice of a row.
#include "quantise.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256)
quantise(const float* x, i64 stride, int width, u8* target, int columns, const int* step, int domain) {
  let_next_start();
  const int row = blockIdx.x;
  const bool is_live = row < step[domain];
  const Hold h = {(int)blockIdx.y, (int)threadIdx.x >> 5, (int)blockDim.x >> 5};
  await_previous();
  if (!is_live) return;
  const float* values = x + row * stride;
  float4 v[ITEMS];
  hold(v, h, width, [=](int k) { return *(const float4*)(values + k); });
  quantise_held(v, h, largest_of_block(v, h), width, row, activation_at(target, width / 32, columns));
}
