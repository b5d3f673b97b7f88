// Cosine and sine of every row and pair: the angle position * frequency, its functions and the magnitude in binary64, rounded once to f32.
// The embedding alone is ahead of it, which has nothing to do with it: it waits last.
#include "common.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(128) rope_table(const double* frequencies, int half, double magnitude, float2* table, const int* step) {
  let_next_start();
  const int pair = threadIdx.x + blockIdx.x * 128, row = blockIdx.y;
  if (row < step[ROWS] && pair < half) {
    double sine, cosine;
    sincos(row_array(step, POSITIONS)[row] * frequencies[pair], &sine, &cosine);
    table[row * half + pair] = make_float2((float)(cosine * magnitude), (float)(sine * magnitude));
  }
  await_previous();
}
