// Attention's rows, finished where it left them in chunks, and quantised, a block a slice of a row: the bits of
// attention_fold and quantise one by one.
#include "partials.cuh"
#include "quantise.cuh"

extern "C" __global__ void __launch_bounds__(256)
fold_quantise(const float* partial_o, const float2* partial_ml, const float* out, i64 stride, int heads, int head_dim, u8* target, int columns, const int* step) {
  let_next_start();
  await_previous();
  const int row = blockIdx.x, width = heads * head_dim;
  const Hold h = {(int)blockIdx.y, (int)threadIdx.x >> 5, (int)blockDim.x >> 5};
  if (row >= step[ROWS]) return;
  const Partials partials = {partial_o, partial_ml, heads, head_dim};
  const bool is_left = row_array(step, CHUNK_BLOCKS)[row] != 0;
  float4 v[ITEMS];
  hold(v, h, width, [=](int k) { return is_left ? folded_four(partials, step, row, k) : *(const float4*)(out + row * stride + k); });
  quantise_held(v, h, largest_of_block(v, h), width, row, activation_at(target, width / 32, columns));
}
