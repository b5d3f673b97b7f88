// The residual sum (where `addend` is given), its norm, and that quantised, a block a row: the bits of add, rms_norm and
// quantise one by one. Rows are the step's, or those whose logits are wanted.
#include "quantise.cuh"
#include "rms.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256)
norm_quantise(const float* x, const float* addend, float* sum, const float* weight, i64 stride, int width, float epsilon,
              u8* target, int columns, const int* step, int domain) {
  let_next_start();
  const int row = blockIdx.x;
  const Hold h = {(int)threadIdx.x >> 5, 0, 1};
  float4 w[ITEMS], v[ITEMS];
  hold(w, h, width, [=](int k) { return *(const float4*)(weight + k); });
  await_previous();
  if (row >= step[domain]) return;
  const i64 from = (domain == WANTED ? row_array(step, WANTED_ROWS)[row] : row) * stride;
  hold(v, h, width, [=](int k) { return *(const float4*)(x + from + k); });
  if (addend != nullptr) {
    float4 more[ITEMS];
    hold(more, h, width, [=](int k) { return *(const float4*)(addend + from + k); });
    UNROLL for (int i = 0; i < ITEMS; i++) {
      v[i] = added(v[i], more[i]);
      if (h.at(i) < width) *(float4*)(sum + from + h.at(i)) = v[i];
    }
  }
  const float r = inverse_rms(v, width, epsilon);
  UNROLL for (int i = 0; i < ITEMS; i++) v[i] = multiplied(scaled(v[i], r), w[i]);
  quantise_held(v, h, largest_held(v), width, row, activation_at(target, width / 32, columns));
}
