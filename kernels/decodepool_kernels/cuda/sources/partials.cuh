// The states of a row's chunks folded in order: blocks into groups of 8, groups into the row.
#pragma once
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

struct Partials {
  const float* o;
  const float2* ml;
  int heads, head_dim;
};

// Four dims from `at` on of a row whose attention was left in chunks.
DEVICE float4 folded_four(const Partials& p, const int* step, int row, int at) {
  const int chunk_blocks = row_array(step, CHUNK_BLOCKS)[row], first = row_array(step, PARTIALS)[row], head = at / p.head_dim;
  const int chunks = row_array(step, POSITIONS)[row] / (PAGE_TOKENS * chunk_blocks) + 1;
  const State nothing = {MINUS_INFINITY, 0.f, make_float4(0.f, 0.f, 0.f, 0.f)};
  State total = nothing;
  for (int begin = 0; begin < chunks; begin += 16) {
    State states[16], group = nothing;
    UNROLL for (int i = 0; i < 16; i++)
      if (begin + i < chunks) {
        const i64 part = (i64)(first + begin + i) * p.heads + head;
        const float2 ml = p.ml[part];
        states[i] = {ml.x, ml.y, *(const float4*)(p.o + part * p.head_dim + at % p.head_dim)};
      }
    UNROLL for (int i = 0; i < 16; i++) {
      if (begin + i < chunks) (chunk_blocks == 8 ? total : group).fold(states[i]);
      if (i % 8 != 7 || chunk_blocks == 8) continue;
      total.fold(group);
      group = nothing;
    }
  }
  const float inverse = __fdiv_rn(1.f, total.l);
  return make_float4(__fmul_rn(total.o.x, inverse), __fmul_rn(total.o.y, inverse), __fmul_rn(total.o.z, inverse), __fmul_rn(total.o.w, inverse));
}
