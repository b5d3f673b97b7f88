// Attention's rows, finished where it left them in chunks, and quantised, a block a slice of a row, a warp a group of its dims: the bits of
// attention_fold and quantise one by one.
// Few rows wait for each round of states, so more are on their way at once: as many as leave a thread 128 registers, beside which the next product's
// blocks find room. Many rows' blocks do better to be more on an SM.
#define FOLD_LOADS (CORES ? 16 : 24)
#include "partials.cuh"
#include "quantise.cuh"

extern "C" __global__ void __launch_bounds__(256)
fold_quantise(const float* partial_o, const float2* partial_ml, const float* out, i64 stride, u8* target, int columns, const int* step, Switches switches) {
  __shared__ FoldTable tables[GROUPS];
  let_next_start();
  const int row = blockIdx.x;
  const bool is_live = row < step[ROWS];
  const Chunks chunks(step, row, switches);
  const Hold h = {(int)blockIdx.y, (int)threadIdx.x >> 5, GROUPS};
  await_previous();
  if (!is_live) return;
  float4 v[ITEMS];
  if (chunks.blocks == 0) {
    hold(v, h, WIDTH, [=](int k) { return *(const float4*)(out + row * stride + k); });
  } else {
    UNROLL for (int i = 0; i < ITEMS; i++) {
      const int k = h.at(i), first = k - 4 * (int)(threadIdx.x & 31);
      v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (first >= WIDTH) continue;
      const float4 folded = folded_four({partial_o, partial_ml}, chunks, first, switches, tables[h.warp]);
      if (k < WIDTH) v[i] = folded;
    }
  }
  quantise_held(v, h, largest_of_block(v, h), WIDTH, row, activation_at(target, WIDTH / 32, columns));
}
