// The largest logit of each wanted row and its id, the lowest among equals: (id, bits of the logit). A row with NaN answers NaN.
#include "common.cuh"
#include "step.cuh"

struct Best {
  float value;
  int id;
};

// NaN beats everything; of equals the lower id.
DEVICE Best better(Best a, Best b) {
  const bool a_faulty = a.value != a.value, b_faulty = b.value != b.value;
  if (a_faulty || b_faulty) return a_faulty ? a : b;
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

DEVICE Best best_of_warp(Best best) {
  UNROLL for (int step = 16; step; step >>= 1)
    best = better(best, {__shfl_xor_sync(~0u, best.value, step), __shfl_xor_sync(~0u, best.id, step)});
  return best;
}

extern "C" __global__ void __launch_bounds__(1024) argmax(const float* logits, i64 stride, int vocabulary, int2* answers, const int* step) {
  __shared__ Best warps[32];
  let_next_start();
  await_previous();
  if ((int)blockIdx.x >= step[WANTED]) return;
  const float* row = logits + row_array(step, WANTED_SLOTS)[blockIdx.x] * stride;
  Best best = {MINUS_INFINITY, 0};
  for (int id = threadIdx.x; id < vocabulary; id += 1024) best = better(best, {row[id], id});
  best = best_of_warp(best);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = best_of_warp(warps[threadIdx.x]);
  if (threadIdx.x == 0) answers[blockIdx.x] = make_int2(best.id, __float_as_int(best.value));
}
