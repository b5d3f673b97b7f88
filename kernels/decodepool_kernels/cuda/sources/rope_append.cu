// Queries turned in place; keys turned and appended with the values: the bits of rope, rope and append. A thread a pair of
// dims of a query head, or of a key and a value head; for q8_0 a block a head, then a thread a dim.
#include "append.cuh"
#include "rotate.cuh"
#include "step.cuh"

#define MOST_DIMS 256

struct Pair {
  int a, b;
};

// The dims of pair `i` of a head: those that turn together, then the others two by two.
DEVICE Pair pair_of(int i, int half, int interleaved) {
  if (i >= half || interleaved) return {2 * i, 2 * i + 1};
  return {i, i + half};
}

#if KV_BITS == 16
DEVICE void put(u8* page, int token, Pair dims, int head_dim, float a, float b) {
  const u32 halves = f16_pair(saturated(a), saturated(b));
  *(u16*)(page + chunk_at(head_dim, token, dims.a >> 3) + (dims.a & 7) * 2) = (u16)halves;
  *(u16*)(page + chunk_at(head_dim, token, dims.b >> 3) + (dims.b & 7) * 2) = (u16)(halves >> 16);
}

// As append does: values stay finite, and their faults go to the keys.
DEVICE void keep_finite(float2& key, float2& value) {
  if (value.x == value.x && value.y == value.y) return;
  key = make_float2(NOT_A_NUMBER, NOT_A_NUMBER);
  value = make_float2(0.f, 0.f);
}
#endif

DEVICE void turn_query(float* values, Pair dims, float2 turn) {
  const float2 turned = rotated(values[dims.a], values[dims.b], turn);
  values[dims.a] = turned.x, values[dims.b] = turned.y;
}

extern "C" __global__ void __launch_bounds__(MOST_DIMS)
rope_append(float* q, i64 q_stride, const float* k, const float* v, i64 kv_stride, int heads, int kv_heads, int head_dim, int half,
            int interleaved, const float2* table, u8* layer, const int* step) {
  let_next_start();
#if KV_BITS == 8
  __shared__ float2 staged[MOST_DIMS];
  const int row = blockIdx.y, head = blockIdx.x, i = threadIdx.x;
#else
  const int item = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y, head = item / (head_dim / 2), i = item % (head_dim / 2);
#endif
  const bool is_live = row < step[ROWS] && head < heads + kv_heads;
  const int position = is_live ? row_array(step, POSITIONS)[row] : 0, token = position % PAGE_TOKENS, kv_head = head - heads;
  const Pair dims = pair_of(i, half, interleaved);
  await_previous();
  if (!is_live) return;
  const float2 turn = i < half ? table[row * half + i] : make_float2(1.f, 0.f);
  if (head < heads) {
    if (i < half) turn_query(q + row * q_stride + head * head_dim, dims, turn);
    return;
  }
  u8* page = head_page(layer, page_table(step, row)[position / PAGE_TOKENS], kv_heads, kv_head, head_dim);
  const float *keys = k + row * kv_stride + kv_head * head_dim, *values = v + row * kv_stride + kv_head * head_dim;
#if KV_BITS == 8
  if (i < head_dim / 2) {
    float2 key = make_float2(keys[dims.a], keys[dims.b]);
    if (i < half) key = rotated(key.x, key.y, turn);
    staged[dims.a] = make_float2(key.x, values[dims.a]), staged[dims.b] = make_float2(key.y, values[dims.b]);
  }
  __syncthreads();
  append_quantised(page, head_dim, token, i, staged[i].x, staged[i].y);
#else
  float2 key = make_float2(keys[dims.a], keys[dims.b]), value = make_float2(values[dims.a], values[dims.b]);
  if (i < half) key = rotated(key.x, key.y, turn);
  keep_finite(key, value);
  put(page, token, dims, head_dim, key.x, key.y);
  put(page + head_page_bytes(head_dim), token, dims, head_dim, value.x, value.y);
#endif
}
