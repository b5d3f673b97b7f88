// The residual sum (where `addend` is given, or its slices: APART), its norm, and that quantised, a block a row: the bits of fold_slices,
// add, rms_norm and quantise one by one. Rows are the step's, or those whose logits are wanted. The product behind it may
// start once the row is here: earlier, its blocks crowd on the SMs that the kernel ahead leaves first, and its weights delay the row.
// EARLY: at once, for few rows: where a product has one block an SM its blocks cannot crowd.
#include "quantise.cuh"
#include "rms.cuh"
#include "slices.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
norm_quantise(const float* x, const float* addend, float* sum, const float* weight, i64 stride, int width, float epsilon,
              u8* target, int columns, const int* step, int domain, const __grid_constant__ Slices slices) {
  if (EARLY) let_next_start();
  const int row = blockIdx.x, rows = step[ROWS];
  const bool is_live = row < step[domain];
  const int from_row = domain == WANTED && is_live ? row_array(step, WANTED_ROWS)[row] : row;
  const i64 from = from_row * stride;
  const Hold h = {(int)threadIdx.x >> 5, 0, 1};
  float4 w[ITEMS], v[ITEMS];
  hold(w, h, width, [=](int k) { return *(const float4*)(weight + k); });
  await_previous();
  if (!is_live) return;
  hold(v, h, width, [=](int k) { return *(const float4*)(x + from + k); });
  if (APART || addend != nullptr) {
    const PartRow added_row(addend + from, slices, 0, rows, from_row);
    float4 more[ITEMS];
    UNROLL for (int i = 0; i < ITEMS; i++) more[i] = added_row.at<float4>(min(h.at(i), width - 4));
    UNROLL for (int i = 0; i < ITEMS; i++)
      if (h.at(i) < width) *(float4*)(sum + from + h.at(i)) = v[i] = added(v[i], more[i]);
  }
  if (!EARLY) let_next_start();
  const float r = inverse_rms(v, width, epsilon);
  UNROLL for (int i = 0; i < ITEMS; i++) v[i] = multiplied(scaled(v[i], r), w[i]);
  quantise_held(v, h, largest_held(v), width, row, activation_at(target, width / 32, columns));
}
