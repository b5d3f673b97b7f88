// The largest logit of each wanted row and its id, the lowest among equals. A row with NaN answers NaN.
// A row is shared by 32 blocks; the last of them to end folds what each found, and leaves the count of those that ended at 0. The id becomes the
// last token of the row's slot.
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

#define THREADS 256
#define SHARES 32
#define AHEAD 16  // logits that a thread asks for before it looks at the first

// The best of a share's logits from `id` on, of each THREADS one; without branches, which would keep loads behind comparisons.
DEVICE Best best_of_share(const float* row, int id, int end) {
  if (id >= end) return {MINUS_INFINITY, 0x7fffffff};
  Best best = {MINUS_INFINITY, id};
  for (; id < end; id += AHEAD * THREADS) {
    float logits[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; i++) load_early(logits[i], row + min(id + i * THREADS, end - 1));
    UNROLL for (int i = 0; i < AHEAD; i++) {
      const bool is_better = !(logits[i] <= best.value) & (best.value == best.value);
      best = {is_better ? logits[i] : best.value, is_better ? min(id + i * THREADS, end - 1) : best.id};
    }
  }
  return best;
}

DEVICE Best best_of_block(Best best, Best* warps) {
  best = best_of_warp(best);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = best;
  __syncthreads();
  const int warp = threadIdx.x & 31;
  return best_of_warp(warp < THREADS / 32 ? warps[warp] : Best{MINUS_INFINITY, 0x7fffffff});
}

extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const float* logits, i64 stride, int vocabulary, Answer* answers, const int* step, Best* shares, int* ended, int* last_tokens) {
  __shared__ Best warps[THREADS / 32];
  __shared__ bool is_last;
  let_next_start();
  await_previous();
  const int wanted = blockIdx.y;
  if (wanted >= step[WANTED]) return;
  const float* row = logits + row_array(step, WANTED_SLOTS)[wanted] * stride;
  const int share = (vocabulary + SHARES - 1) / SHARES, end = min(vocabulary, (int)(blockIdx.x + 1) * share);
  Best best = best_of_block(best_of_share(row, blockIdx.x * share + threadIdx.x, end), warps);
  if (threadIdx.x == 0) {
    shares[wanted * SHARES + blockIdx.x] = best;
    __threadfence();
    is_last = atomicAdd(&ended[wanted], 1) == SHARES - 1;
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= 32) return;
  __threadfence();
  const int2 held = __ldcg((const int2*)&shares[wanted * SHARES + threadIdx.x]);
  best = best_of_warp({__int_as_float(held.x), held.y});
  if (threadIdx.x != 0) return;
  answers[wanted].best = best.id;
  answers[wanted].logit = best.value;
  last_tokens[row_array(step, WANTED_SLOTS)[wanted]] = best.id;
  ended[wanted] = 0;
}
