// Attention's rows, finished where it left them in chunks, and quantised, a block a slice of a row: the bits of attention_fold and quantise
// one by one. 128 threads fold the dims of a group, then a warp holds them.
#include "partials.cuh"
#include "quantise.cuh"

extern "C" __global__ void __launch_bounds__(FOLD_DIMS * GROUPS)
fold_quantise(const float* partial_o, const float2* partial_ml, const float* out, i64 stride, int heads, int head_dim, u8* target, int columns, const int* step) {
  __shared__ FoldTable tables[GROUPS];
  __shared__ __align__(16) float dims[GROUPS][FOLD_DIMS];
  __shared__ float largest[4 * GROUPS];
  let_next_start();
  const int row = blockIdx.x, width = heads * head_dim, group = threadIdx.x / FOLD_DIMS, self = threadIdx.x % FOLD_DIMS;
  const bool is_live = row < step[ROWS];
  const Chunks chunks(step, row);
  await_previous();
  if (!is_live) return;
  const Hold h = {(int)blockIdx.y, (int)threadIdx.x >> 5, GROUPS};
  float4 v[ITEMS];
  float own = 0.f;
  UNROLL for (int i = 0; i < ITEMS; i++) {
    const int first = h.slice * FOLD_DIMS + SLICE_STRIDE * (i * GROUPS + group);
    float value = 0.f;
    if (chunks.blocks) value = folded_dim({partial_o, partial_ml, heads, head_dim}, chunks, first, tables[group]);
    else if (first + self < width) value = out[row * stride + first + self];
    if (first + self >= width) value = 0.f;
    dims[group][self] = value;
    own = fmaxf(own, fabsf(value));
    __syncthreads();
    if (h.warp < GROUPS) v[i] = *(const float4*)&dims[h.warp][4 * (threadIdx.x & 31)];
    __syncthreads();
  }
  own = warp_largest(own);
  if ((threadIdx.x & 31) == 0) largest[h.warp] = own;
  __syncthreads();
  if (h.warp >= GROUPS) return;
  for (int warp = 0; warp < 4 * GROUPS; warp++) own = fmaxf(own, largest[warp]);
  quantise_held(v, h, own, width, row, activation_at(target, width / 32, columns));
}
