// The first 2 half elements of each head rotated in place: pairs (2i, 2i + 1) if interleaved, else (i, i + half). A thread a pair.
#include "rotate.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(128)
rope(float* x, i64 stride, int heads, int head_width, int half, int interleaved, const float2* table, const int* step) {
  let_next_start();
  await_previous();
  const int item = blockIdx.x * 128 + threadIdx.x, head = item / half, pair = item % half, row = blockIdx.y;
  if (row >= step[ROWS] || head >= heads) return;
  float* values = x + row * stride + head * head_width;
  float &a = values[interleaved ? 2 * pair : pair], &b = values[interleaved ? 2 * pair + 1 : pair + half];
  const float2 turned = rotated(a, b, table[row * half + pair]);
  a = turned.x;
  b = turned.y;
}
