// The rows that attention left in chunks, finished. A dim a thread; rows that attention finished itself have CHUNK_BLOCKS 0.
#include "partials.cuh"

extern "C" __global__ void __launch_bounds__(128)
attention_fold(const float* partial_o, const float2* partial_ml, float* out, i64 out_stride, int heads, int head_dim, const int* step) {
  __shared__ FoldTable table;
  let_next_start();
  const int first = FOLD_DIMS * blockIdx.x, row = blockIdx.y, dim = first + threadIdx.x;
  const bool is_live = row < step[ROWS];
  const Chunks chunks(step, row);
  await_previous();
  if (!is_live || chunks.blocks == 0) return;
  const float value = folded_dim({partial_o, partial_ml, heads, head_dim}, chunks, first, table);
  if (dim < heads * head_dim) out[row * out_stride + dim] = value;
}
