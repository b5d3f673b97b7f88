// out = (x r) weight, for each of the vectors of `width` that lie side by side in a row; a block a vector.
#include "rms.cuh"
#include "step.cuh"

extern "C" __global__ void __launch_bounds__(256)
rms_norm(const float* x, const float* weight, float* out, i64 stride, int width, float epsilon, const int* step, int domain) {
  let_next_start();
  await_previous();
  const int row = blockIdx.x;
  if (row >= step[domain]) return;
  const i64 from = row * stride + blockIdx.y * width;
  float4 v[ITEMS];
  UNROLL for (int i = 0; i < ITEMS; i++) {
    const int k = 4 * threadIdx.x + 1024 * i;
    v[i] = k < width ? *(const float4*)(x + from + k) : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  const float r = inverse_rms(v, width, epsilon);
  UNROLL for (int i = 0; i < ITEMS; i++) {
    const int k = 4 * threadIdx.x + 1024 * i;
    if (k < width) *(float4*)(out + from + k) = multiplied(multiplied(v[i], make_float4(r, r, r, r)), *(const float4*)(weight + k));
  }
}
