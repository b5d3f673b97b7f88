// out = W x (+ bias) for f32 weights [tile of 16 outputs][input][16]: per block of 32 inputs a chain of fma from zero, blocks added. A thread an output.
#include "common.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(128)
matmul_f32(const float* weights, const float* x, i64 stride, const float* bias, float* out, i64 out_stride, int outputs, int inputs, const int* step,
           int domain) {
  let_next_start();
  await_previous();
  const int output = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
  if (row >= step[domain] || output >= outputs) return;
  const float *w = weights + (size_t)(output / 16) * inputs * 16 + output % 16, *values = x + row * stride;
  float y = 0.f;
  for (int first = 0; first < inputs; first += 32) {
    float sum = 0.f;
    UNROLL for (int k = first; k < first + 32; k++) sum = fmaf(w[k * 16], values[k], sum);
    y = __fadd_rn(y, sum);
  }
  out[(domain == WANTED ? row_array(step, WANTED_SLOTS)[row] : row) * out_stride + output] = bias == nullptr ? y : __fadd_rn(y, bias[output]);
}
