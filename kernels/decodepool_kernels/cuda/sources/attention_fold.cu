// The states of a row's chunks folded in order: blocks into groups of 8, groups into the row. Four dims of a head a thread; rows that attention
// finished itself have CHUNK_BLOCKS 0.
#include "pages.cuh"
#include "softmax.cuh"
#include "step.cuh"

struct State {
  float m, l;
  float4 o;
  METHOD void fold(const State& other) {
    const Weights w = absorb(m, other.m);
    l = folded(l, other.l, w);
    o = make_float4(folded(o.x, other.o.x, w), folded(o.y, other.o.y, w), folded(o.z, other.o.z, w), folded(o.w, other.o.w, w));
  }
};

extern "C" __global__ void __launch_bounds__(128)
attention_fold(const float* partial_o, const float2* partial_ml, float* out, i64 out_stride, int heads, int head_dim, const int* step) {
  let_next_start();
  await_previous();
  const int at = 4 * (blockIdx.x * 128 + threadIdx.x), row = blockIdx.y;
  if (row >= step[ROWS] || at >= heads * head_dim) return;
  const int chunk_blocks = row_array(step, CHUNK_BLOCKS)[row];
  if (chunk_blocks == 0) return;
  const int chunks = row_array(step, POSITIONS)[row] / (PAGE_TOKENS * chunk_blocks) + 1, first = row_array(step, PARTIALS)[row], head = at / head_dim;
  const State nothing = {MINUS_INFINITY, 0.f, make_float4(0.f, 0.f, 0.f, 0.f)};
  State total = nothing;
  for (int begin = 0; begin < chunks; begin += 8) {
    State states[8], group = nothing;
    UNROLL for (int i = 0; i < 8; i++)
      if (begin + i < chunks) {
        const i64 part = (i64)(first + begin + i) * heads + head;
        const float2 ml = partial_ml[part];
        states[i] = {ml.x, ml.y, *(const float4*)(partial_o + part * head_dim + at % head_dim)};
      }
    UNROLL for (int i = 0; i < 8; i++)
      if (begin + i < chunks) (chunk_blocks == 8 ? total : group).fold(states[i]);
    if (chunk_blocks != 8) total.fold(group);
  }
  const float inverse = __fdiv_rn(1.f, total.l);
  *(float4*)(out + row * out_stride + at) = make_float4(__fmul_rn(total.o.x, inverse), __fmul_rn(total.o.y, inverse), __fmul_rn(total.o.z, inverse),
                                                        __fmul_rn(total.o.w, inverse));
}
