// Queries turned in place; keys turned and appended with the values (APART: from their slices): the bits of fold_slices, rope, rope and append. A thread a pair of
// dims of EACH query heads side by side, or of as many key and value heads; for q8_0 a block a head, then a thread a dim.
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

// A row as a thread meets it: whether it is there, and where its key and value go. Read from the step alone, before the kernels ahead have ended.
struct Place {
  int row, rows, token, page;
  bool is_live;
  METHOD Place(const int* step, bool has_head) : row(blockIdx.y), rows(step[ROWS]), is_live(row < rows && has_head) {
    const int position = is_live ? row_array(step, POSITIONS)[row] : 0;
    token = position % PAGE_TOKENS;
    page = is_live ? page_table(step, row)[position / PAGE_TOKENS] : 0;
  }
};

DEVICE float2 turned(float2 pair, float2 turn, bool turns) { return turns ? rotated(pair.x, pair.y, turn) : pair; }

DEVICE void put_query(float* query, Pair dims, float2 values) { query[dims.a] = values.x, query[dims.b] = values.y; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rope_append(float* q, i64 q_stride, const float* k, const float* v, i64 kv_stride, int heads, int kv_heads, int head_dim, int half,
            int interleaved, const float2* table, u8* layer, const int* step, const __grid_constant__ Slices slices) {
  let_next_start();
#if KV_BITS == 8
  __shared__ float2 staged[MOST_DIMS];
  const int first = blockIdx.x, i = threadIdx.x;
#else
  const int item = blockIdx.x * THREADS + threadIdx.x, first = item / (head_dim / 2) * EACH, i = item % (head_dim / 2);
#endif
  const Place place(step, first < heads + kv_heads);
  const Pair dims = pair_of(i, half, interleaved);
  await_previous();
  if (!place.is_live) return;
  const int row = place.row;
  const float2 turn = i < half ? table[row * half + i] : make_float2(1.f, 0.f);
  const PartRow queries(q + row * q_stride, slices, 0, place.rows, row), keys(k + row * kv_stride, slices, 1, place.rows, row),
      values(v + row * kv_stride, slices, 2, place.rows, row);
#if KV_BITS == 8
  if (first < heads) {
    if (i >= (APART ? head_dim / 2 : half)) return;
    put_query(q + row * q_stride + first * head_dim, dims, turned(pair_at(queries, first * head_dim, dims), turn, i < half));
    return;
  }
  if (i < head_dim / 2) {
    const int from = (first - heads) * head_dim;
    const float2 key = turned(pair_at(keys, from, dims), turn, i < half), value = pair_at(values, from, dims);
    staged[dims.a] = make_float2(key.x, value.x), staged[dims.b] = make_float2(key.y, value.y);
  }
  __syncthreads();
  append_quantised(head_page(layer, place.page, kv_heads, first - heads, head_dim), head_dim, place.token, i, staged[i].x, staged[i].y);
#else
  float2 pairs[EACH], value[EACH];
  UNROLL for (int e = 0; e < EACH; e++) {
    const int head = first + e, from = (head - heads) * head_dim;
    if (head < heads) pairs[e] = pair_at(queries, head * head_dim, dims);
    else if (head < heads + kv_heads) pairs[e] = pair_at(keys, from, dims), value[e] = pair_at(values, from, dims);
  }
  UNROLL for (int e = 0; e < EACH; e++) {
    const int head = first + e;
    if (head >= heads + kv_heads) break;
    float2 pair = turned(pairs[e], turn, i < half);
    if (head < heads) {
      put_query(q + row * q_stride + head * head_dim, dims, pair);
      continue;
    }
    u8* page = head_page(layer, place.page, kv_heads, head - heads, head_dim);
    keep_finite(pair, value[e]);
    put(page, place.token, dims, head_dim, pair.x, pair.y);
    put(page + head_page_bytes(head_dim), place.token, dims, head_dim, value[e].x, value[e].y);
  }
#endif
}
