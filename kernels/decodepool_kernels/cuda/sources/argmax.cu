// The best of each wanted row, for any GPU: a row is shared by 32 blocks; the last of them to end folds what each found, and leaves the count of those
// that ended at 0.
#define THREADS 256
#define SHARES 32
#include "argmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const float* logits, i64 stride, int vocabulary, Answer* answers, const int* step, int* last_tokens, Best* shares, int* ended) {
  __shared__ Best warps[THREADS / 32];
  __shared__ bool is_last;
  let_next_start();
  await_previous();
  const int wanted = blockIdx.y;
  if (wanted >= step[WANTED]) return;
  const int slot = row_array(step, WANTED_SLOTS)[wanted];
  const Best own = best_of_thread(logits + slot * stride, vocabulary, blockIdx.x * THREADS + threadIdx.x, SHARES * THREADS);
  const Best best = best_of_block(own, warps);
  if (threadIdx.x == 0) {
    shares[wanted * SHARES + blockIdx.x] = best;
    __threadfence();
    is_last = atomicAdd(&ended[wanted], 1) == SHARES - 1;
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= 32) return;
  __threadfence();
  const int2 held = __ldcg((const int2*)&shares[wanted * SHARES + threadIdx.x]);
  const Best whole = best_of_warp({(u32)held.x, (u32)held.y});
  if (threadIdx.x != 0) return;
  answer(answers, step, wanted, last_tokens, slot, whole);
  ended[wanted] = 0;
}
