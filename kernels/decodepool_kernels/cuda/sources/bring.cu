// A step's words from the host's memory, where two steps take turns: those with the number after the last that was brought. Where there are none, the
// step is the last one again. What did not change stays: words from WORDS_END on but those from CHANGED_AT to CHANGED_END.
// It lets no kernel start: those behind it read the step before their waits.
#include "step.cuh"

#define THREADS 1024
#define AHEAD 4
#define MOST_NUMBER 0x7fffffff

// From memory that the host writes to between two launches.
DEVICE int4 from_host(const int4* words) {
  int4 v;
  asm volatile("ld.volatile.global.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(words));
  return v;
}

// Fours of words; loads of a round are all on their way before the first is stored.
DEVICE void bring_fours(int4* step, const int4* words, int first, int end) {
  for (int at = first + threadIdx.x; at < end; at += AHEAD * THREADS) {
    int4 v[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; i++) v[i] = from_host(words + min(at + i * THREADS, end - 1));
    UNROLL for (int i = 0; i < AHEAD; i++)
      if (at + i * THREADS < end) step[at + i * THREADS] = v[i];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) bring(const int4* turns, int fours, int* step) {
  __shared__ int header[HEADER_WORDS];
  await_previous();
  const int number = (step[NUMBER] + 1) & MOST_NUMBER;
  const int4* words = turns + (number & 1) * (i64)fours;
  const int4 mine = from_host(words + min((int)threadIdx.x, fours - 1));  // its header and most of what it has, at once
  if (threadIdx.x < HEADER_WORDS / 4) ((int4*)header)[threadIdx.x] = mine;
  __syncthreads();
  if (header[NUMBER] != number) return;
  if (4 * (int)threadIdx.x < header[WORDS_END]) ((int4*)step)[threadIdx.x] = mine;
  bring_fours((int4*)step, words, THREADS, header[WORDS_END] / 4);
  bring_fours((int4*)step, words, header[CHANGED_AT] / 4, header[CHANGED_END] / 4);
}
