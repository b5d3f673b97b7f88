// What argmax does, where blocks tell each other without memory between them (sm_90): a row is a cluster's of BLOCKS, the first of which gets what each has found.
#define THREADS 512
#include "argmax.cuh"
#include "cluster.cuh"
#include "pipe.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) __cluster_dims__(BLOCKS, 1, 1)
    argmax_cluster(const float* logits, i64 stride, int vocabulary, Answer* answers, const int* step, int* last_tokens) {
  __shared__ Best warps[THREADS / 32];
  __shared__ float4 found[BLOCKS];
  __shared__ u64 all_found;
  if (threadIdx.x == 0) {
    set_barrier(shared_address(&all_found), 1);
    show_barriers();
    arrive_expecting(shared_address(&all_found), sizeof(found));
  }
  __syncwarp();
  meet_blocks();
  let_next_start();
  const int wanted = blockIdx.y, rank = blockIdx.x, lane = threadIdx.x & 31;
  const bool is_live = wanted < step[WANTED];
  const int slot = is_live ? row_array(step, WANTED_SLOTS)[wanted] : 0;
  const float* row = logits + slot * stride;
  await_previous_with(row);
  if (!is_live) return;
  const Best best = best_of_block(best_of_thread(row, vocabulary, rank * THREADS + threadIdx.x, BLOCKS * THREADS), warps);
  if (threadIdx.x == 0) {
    const float4 told = make_float4(__uint_as_float(best.key), __uint_as_float(best.id), 0.f, 0.f);
    send(address_in(shared_address(&found[rank]), 0), told, address_in(shared_address(&all_found), 0));
  }
  if (rank != 0 || threadIdx.x >= 32) return;
  __syncwarp();
  wait_barrier(shared_address(&all_found), 0);
  const float4 theirs = found[lane % BLOCKS];
  const Best whole = best_of_warp({__float_as_uint(theirs.x), __float_as_uint(theirs.y)});
  if (lane == 0) answer(answers, step, wanted, last_tokens, slot, whole);
}
