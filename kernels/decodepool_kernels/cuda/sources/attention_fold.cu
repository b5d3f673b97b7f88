// The rows that attention left in chunks, finished. Four dims of a head a thread; rows that attention finished itself have
// CHUNK_BLOCKS 0.
#include "partials.cuh"

extern "C" __global__ void __launch_bounds__(128)
attention_fold(const float* partial_o, const float2* partial_ml, float* out, i64 out_stride, int heads, int head_dim, const int* step) {
  let_next_start();
  await_previous();
  const int at = 4 * (blockIdx.x * 128 + threadIdx.x), row = blockIdx.y;
  if (row >= step[ROWS] || at >= heads * head_dim || row_array(step, CHUNK_BLOCKS)[row] == 0) return;
  *(float4*)(out + row * out_stride + at) = folded_four({partial_o, partial_ml, heads, head_dim}, step, row, at);
}
