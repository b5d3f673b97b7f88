// The rows that attention left in chunks, finished. Four dims a thread; rows that attention finished itself have CHUNK_BLOCKS 0.
#include "partials.cuh"

extern "C" __global__ void __launch_bounds__(128)
attention_fold(const float* partial_o, const float2* partial_ml, float* out, i64 out_stride, const int* step, Switches switches) {
  __shared__ FoldTable tables[4];
  let_next_start();
  const int warp = threadIdx.x >> 5, first = FOLD_DIMS * (blockIdx.x * 4 + warp), row = blockIdx.y, dim = first + 4 * (threadIdx.x & 31);
  const bool is_live = row < step[ROWS] && first < WIDTH;
  const Chunks chunks(step, row, switches);
  await_previous();
  if (!is_live || chunks.blocks == 0) return;
  const float4 value = folded_four({partial_o, partial_ml}, chunks, first, switches, tables[warp]);
  if (dim < WIDTH) *(float4*)(out + row * out_stride + dim) = value;
}
