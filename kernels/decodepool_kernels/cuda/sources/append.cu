// Keys and values of every row to their pages: f16 held within +-65504, four dims a thread, or q8_0, a dim a thread.
#include "append.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(128)
append(const float* keys, const float* values, i64 stride, int kv_heads, int head_dim, u8* layer, const int* step) {
  let_next_start();
  await_previous();
  const int at = APPENDED_DIMS * (blockIdx.x * 128 + threadIdx.x), row = blockIdx.y;
  if (row >= step[ROWS] || at >= kv_heads * head_dim) return;
  const int position = row_array(step, POSITIONS)[row], token = position % PAGE_TOKENS, dim = at % head_dim;
  u8* page = head_page(layer, page_table(step, row)[position / PAGE_TOKENS], kv_heads, at / head_dim, head_dim);
#if KV_BITS == 8
  Appended(keys[row * stride + at], values[row * stride + at]).put(page, page + head_page_bytes(head_dim), head_dim, token, dim);
#else
  const float4 k = *(const float4*)(keys + row * stride + at), v = *(const float4*)(values + row * stride + at);
  Appended(k, v).put(page, page + head_page_bytes(head_dim), head_dim, token, dim);
#endif
}
