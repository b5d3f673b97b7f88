// Keys and values of every row to their pages: f16 held within +-65504, four dims a thread, or q8_0, a dim a thread.
#include "append.cuh"
#include "step.cuh"

#define THREAD_DIMS (KV_BITS == 8 ? 1 : 4)

#if KV_BITS == 16
DEVICE bool is_nan(float4 v) { return v.x != v.x || v.y != v.y || v.z != v.z || v.w != v.w; }

DEVICE void append_four(u8* page, int token, int dim, int head_dim, float4 v) {
  const u32 first = f16_pair(saturated(v.x), saturated(v.y)), second = f16_pair(saturated(v.z), saturated(v.w));
  *(uint2*)(page + chunk_at(head_dim, token, dim >> 3) + (dim & 7) * 2) = make_uint2(first, second);
}
#endif

extern "C" __global__ void __launch_bounds__(128)
append(const float* keys, const float* values, i64 stride, int kv_heads, int head_dim, u8* layer, const int* step) {
  let_next_start();
  await_previous();
  const int at = THREAD_DIMS * (blockIdx.x * 128 + threadIdx.x), row = blockIdx.y;
  if (row >= step[ROWS] || at >= kv_heads * head_dim) return;
  const int position = row_array(step, POSITIONS)[row], token = position % PAGE_TOKENS, dim = at % head_dim;
  u8* page = head_page(layer, page_table(step, row)[position / PAGE_TOKENS], kv_heads, at / head_dim, head_dim);
#if KV_BITS == 8
  append_quantised(page, head_dim, token, dim, keys[row * stride + at], values[row * stride + at]);
#else
  const float4 k = *(const float4*)(keys + row * stride + at), v = *(const float4*)(values + row * stride + at);
  const bool is_lost = is_nan(v);
  append_four(page, token, dim, head_dim, is_lost ? make_float4(NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER) : k);
  append_four(page + head_page_bytes(head_dim), token, dim, head_dim, is_lost ? make_float4(0.f, 0.f, 0.f, 0.f) : v);
#endif
}
