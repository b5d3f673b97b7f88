// A token's row of an f32 matrix [tile of 16 outputs][input][16].
#include "common.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256) embed_f32(const float* weights, float* out, i64 stride, int inputs, const int* step, const int* last_tokens) {
  await_previous();  // for the step itself, which others read without waiting
  let_next_start();
  const int k = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
  if (row >= step[ROWS] || k >= inputs) return;
  const int token = row_token(step, last_tokens, row);
  out[row * stride + k] = weights[((size_t)(token / 16) * inputs + k) * 16 + token % 16];
}
