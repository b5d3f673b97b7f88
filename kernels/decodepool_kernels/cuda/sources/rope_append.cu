// Queries turned in place; keys turned and appended with the values (APART: from their slices): the bits of fold_slices, rope, rope and append. A thread a pair of
// dims of a query head, or of a key and a value head; for q8_0 a block a head, then a thread a dim.
#include "append.cuh"
#include "rotate.cuh"
#include "slices.cuh"
#include "step.cuh"

#define MOST_DIMS 256
#if KV_BITS == 8
#define THREADS MOST_DIMS
#define BLOCKS 1
#else
#define THREADS 128
#define BLOCKS 10  // an SM
#endif

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

// The pair of dims of the head that begins at `from`.
DEVICE float2 pair_at(const PartRow& row, int from, Pair dims) {
  if (dims.b == dims.a + 1) return row.at<float2>(from + dims.a);
  return make_float2(row.at<float>(from + dims.a), row.at<float>(from + dims.b));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rope_append(float* q, i64 q_stride, const float* k, const float* v, i64 kv_stride, int heads, int kv_heads, int head_dim, int half,
            int interleaved, const float2* table, u8* layer, const int* step, const __grid_constant__ Slices slices) {
  let_next_start();
#if KV_BITS == 8
  __shared__ float2 staged[MOST_DIMS];
  const int row = blockIdx.y, head = blockIdx.x, i = threadIdx.x;
#else
  const int item = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y, head = item / (head_dim / 2), i = item % (head_dim / 2);
#endif
  const int rows = step[ROWS], kv_head = head - heads;
  const bool is_live = row < rows && head < heads + kv_heads;
  const int position = is_live ? row_array(step, POSITIONS)[row] : 0, token = position % PAGE_TOKENS;
  const int page_index = is_live ? page_table(step, row)[position / PAGE_TOKENS] : 0;
  const Pair dims = pair_of(i, half, interleaved);
  await_previous();
  if (!is_live) return;
  const float2 turn = i < half ? table[row * half + i] : make_float2(1.f, 0.f);
  if (head < heads) {
    if (i >= (APART ? head_dim / 2 : half)) return;
    float* query = q + row * q_stride + head * head_dim;
    float2 values = pair_at(PartRow(q + row * q_stride, slices, 0, rows, row), head * head_dim, dims);
    if (i < half) values = rotated(values.x, values.y, turn);
    query[dims.a] = values.x, query[dims.b] = values.y;
    return;
  }
  u8* page = head_page(layer, page_index, kv_heads, kv_head, head_dim);
  const PartRow keys(k + row * kv_stride, slices, 1, rows, row), values(v + row * kv_stride, slices, 2, rows, row);
  const int from = kv_head * head_dim;
#if KV_BITS == 8
  if (i < head_dim / 2) {
    float2 key = pair_at(keys, from, dims);
    const float2 value = pair_at(values, from, dims);
    if (i < half) key = rotated(key.x, key.y, turn);
    staged[dims.a] = make_float2(key.x, value.x), staged[dims.b] = make_float2(key.y, value.y);
  }
  __syncthreads();
  append_quantised(page, head_dim, token, i, staged[i].x, staged[i].y);
#else
  float2 key = pair_at(keys, from, dims), value = pair_at(values, from, dims);
  if (i < half) key = rotated(key.x, key.y, turn);
  keep_finite(key, value);
  put(page, token, dims, head_dim, key.x, key.y);
  put(page + head_page_bytes(head_dim), token, dims, head_dim, value.x, value.y);
#endif
}
