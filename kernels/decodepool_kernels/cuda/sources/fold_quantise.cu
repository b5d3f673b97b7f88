// Attention's rows, finished where it left them in chunks, and quantised, a block a slice of a row: the bits of attention_fold and quantise one by one.
#include "fold_slice.cuh"

extern "C" __global__ void __launch_bounds__(256)
fold_quantise(const float* partial_o, const float2* partial_ml, const float* out, i64 stride, u8* target, int columns, const int* step, Switches switches) {
  let_next_start();
  const int row = blockIdx.x;
  const bool is_live = row < step[ROWS];
  const Chunks chunks(step, row, switches);
  await_previous();
  if (!is_live) return;
  fold_slice({partial_o, partial_ml}, out + row * stride, chunks, blockIdx.y, row, activation_at(target, WIDTH / 32, columns), switches);
}
