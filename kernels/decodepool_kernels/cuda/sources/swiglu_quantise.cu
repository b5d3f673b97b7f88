// silu(gate) up, quantised, a block a slice of a row: the bits of swiglu and quantise one by one.
#define GROUPS ((WIDTH + 1023) / 1024)  // of 128, that a slice has
#define WARPS (GROUPS < 16 ? GROUPS : 16)
#define ITEMS ((GROUPS + WARPS - 1) / WARPS)
#include "quantise.cuh"
#include "silu.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(512)
swiglu_quantise(const float* gate, const float* up, i64 stride, u8* target, int columns, const int* step) {
  let_next_start();
  const int row = blockIdx.x;
  const bool is_live = row < step[ROWS];
  const Hold h = {(int)blockIdx.y, (int)threadIdx.x >> 5, WARPS};
  const float *gates = gate + row * stride + h.at(0), *ups = up + row * stride + h.at(0);
  const Places to(activation_at(target, WIDTH / 32, columns), h, row);
  await_previous_with(gates, ups);
  if (!is_live) return;
  float4 v[ITEMS], w[ITEMS];
  hold(v, h, WIDTH, [=](int k) { return *(const float4*)(gates + (k - h.at(0))); });
  hold(w, h, WIDTH, [=](int k) { return *(const float4*)(ups + (k - h.at(0))); });
  UNROLL for (int i = 0; i < ITEMS; i++) v[i] = CORES ? gated(v[i], w[i]) : gated_abreast(v[i], w[i]);
  quantise_held(v, h, largest_of_block(v, h), WIDTH, to);
}
