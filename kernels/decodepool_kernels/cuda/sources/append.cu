// Keys and values of every row to their pages, f16 held within +-65504, four dims a thread. Values are kept finite, for a
// weight of 0 times NaN would reach rows that must not see it; where they were NaN the keys become NaN, which only rows
// that see the token meet.
#include "pages.cuh"
#include "step.cuh"

DEVICE bool is_nan(float4 v) { return v.x != v.x || v.y != v.y || v.z != v.z || v.w != v.w; }

DEVICE void append_four(u8* page, int token, int dim, int head_dim, float4 v) {
  const u32 first = f16_pair(saturated(v.x), saturated(v.y)), second = f16_pair(saturated(v.z), saturated(v.w));
  *(uint2*)(page + chunk_at(head_dim, token, dim >> 3) + (dim & 7) * 2) = make_uint2(first, second);
}

extern "C" __global__ void __launch_bounds__(128)
append(const float* keys, const float* values, i64 stride, int kv_heads, int head_dim, u8* layer, const int* step) {
  let_next_start();
  await_previous();
  const int at = 4 * (blockIdx.x * 128 + threadIdx.x), row = blockIdx.y;
  if (row >= step[ROWS] || at >= kv_heads * head_dim) return;
  const int position = row_array(step, POSITIONS)[row], token = position % PAGE_TOKENS, dim = at % head_dim;
  u8* page = head_page(layer, page_table(step, row)[position / PAGE_TOKENS], kv_heads, at / head_dim, head_dim);
  const float4 k = *(const float4*)(keys + row * stride + at), v = *(const float4*)(values + row * stride + at);
  const bool is_lost = is_nan(v);
  append_four(page, token, dim, head_dim, is_lost ? make_float4(NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER) : k);
  append_four(page + head_page_bytes(head_dim), token, dim, head_dim, is_lost ? make_float4(0.f, 0.f, 0.f, 0.f) : v);
}
