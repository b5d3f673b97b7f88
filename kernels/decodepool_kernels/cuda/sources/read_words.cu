// Memory read at the rate the GPU gives: each block's exclusive or of the 16-byte words it reads, so that nothing is left out.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(512) read_words(const uint4* words, i64 count, uint4* sums) {
  __shared__ u32 sum[4];
  if (threadIdx.x < 4) sum[threadIdx.x] = 0;
  __syncthreads();
  uint4 mine = {0, 0, 0, 0};
  const i64 stride = (i64)gridDim.x * 512;
  i64 at = (i64)blockIdx.x * 512 + threadIdx.x;
  for (; at + 7 * stride < count; at += 8 * stride) {
    uint4 held[8];
    UNROLL for (int i = 0; i < 8; ++i) held[i] = __ldcs(words + at + i * stride);
    UNROLL for (int i = 0; i < 8; ++i) {
      mine.x ^= held[i].x, mine.y ^= held[i].y, mine.z ^= held[i].z, mine.w ^= held[i].w;
    }
  }
  for (; at < count; at += stride) {
    const uint4 held = words[at];
    mine.x ^= held.x, mine.y ^= held.y, mine.z ^= held.z, mine.w ^= held.w;
  }
  atomicXor(&sum[0], mine.x);
  atomicXor(&sum[1], mine.y);
  atomicXor(&sum[2], mine.z);
  atomicXor(&sum[3], mine.w);
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = make_uint4(sum[0], sum[1], sum[2], sum[3]);
}
