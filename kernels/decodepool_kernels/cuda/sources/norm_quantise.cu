// The residual sum (where `addend` is given, or its slices: APART), its norm, and that quantised, a block a row: the bits of fold_slices,
// add, rms_norm and quantise one by one. Rows are the step's, or those whose logits are wanted. The product behind it may
// start once the row is here: earlier, its blocks crowd on the SMs that the kernel ahead leaves first, and its weights delay the row.
// EARLY: at once, for few rows: where a product has one block an SM its blocks cannot crowd.
#define ITEMS ((WIDTH + 1023) / 1024)
#include "quantise.cuh"
#include "rms.cuh"
#include "slices.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
norm_quantise(const float* x, const float* addend, float* sum, const float* weight, i64 stride, float epsilon,
              u8* target, int columns, const int* step, int domain, const __grid_constant__ Slices slices) {
  if (EARLY) let_next_start();
  const int row = blockIdx.x, rows = step[ROWS];
  const bool is_live = row < step[domain];
  const int from_row = domain == WANTED && is_live ? row_array(step, WANTED_ROWS)[row] : row;
  const i64 from = from_row * stride;
  const Hold h = {(int)threadIdx.x >> 5, 0, 1};
  float4 w[ITEMS], v[ITEMS];
  hold(w, h, WIDTH, [=](int k) { return *(const float4*)(weight + k); });
  const float *own = x + from, *others = addend + from;
  const Places to(activation_at(target, WIDTH / 32, columns), h, row);
  if (!is_live) return await_previous();
  await_previous();
  hold(v, h, WIDTH, [=](int k) { return *(const float4*)(own + k); });
  if (APART || addend != nullptr) {
    const PartRow added_row(others, slices, 0, rows, from_row);
    float4 more[ITEMS];
    hold(more, h, WIDTH, [&](int k) { return added_row.at<float4>(k); });
    UNROLL for (int i = 0; i < ITEMS; i++)
      if (is_held(h, h.at(i), WIDTH)) *(float4*)(sum + from + h.at(i)) = v[i] = added(v[i], more[i]);
  }
  if (!EARLY) let_next_start();
  const float r = inverse_rms(v, WIDTH, epsilon);
  UNROLL for (int i = 0; i < ITEMS; i++) v[i] = multiplied(scaled(v[i], r), w[i]);
  quantise_held(v, h, largest_held(v), WIDTH, to);
}
