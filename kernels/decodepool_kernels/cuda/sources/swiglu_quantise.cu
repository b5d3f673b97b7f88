// silu(gate) up, quantised, a block a slice of a row: the bits of swiglu and quantise one by one.
#include "quantise.cuh"
#include "silu.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(512)
swiglu_quantise(const float* gate, const float* up, i64 stride, int width, u8* target, int columns, const int* step) {
  let_next_start();
  const int row = blockIdx.x;
  const bool is_live = row < step[ROWS];
  const Hold h = {(int)blockIdx.y, (int)threadIdx.x >> 5, (int)blockDim.x >> 5};
  await_previous();
  if (!is_live) return;
  const float *g = gate + row * stride, *u = up + row * stride;
  float4 v[ITEMS], w[ITEMS];
  hold(v, h, width, [=](int k) { return *(const float4*)(g + k); });
  hold(w, h, width, [=](int k) { return *(const float4*)(u + k); });
  UNROLL for (int i = 0; i < ITEMS; i++) v[i] = gated(v[i], w[i]);
  quantise_held(v, h, largest_of_block(v, h), width, row, activation_at(target, width / 32, columns));
}
