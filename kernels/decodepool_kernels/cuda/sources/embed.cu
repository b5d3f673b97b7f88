// A token's row of a packed matrix as f32: fma(code - zero, scale, minimum); floats widen exactly. A thread an element.
#include "heads.cuh"
#include "step.cuh"

// Of block q of a tile's group.
DEVICE float element(const u8* group, int q, int output, int k, int zero) {
  const u8* record = group + HEAD_BYTES + q * RECORD_BYTES;
  const int g = output & 7, below = output >> 3, half = k >> 4, lane = 4 * g + ((k >> 2) & 3);
#if CODE_BITS == 16
  const u16 bits = *(const u16*)(record + half * 512 + lane * 16 + (below + (k & 2)) * 4 + (k & 1) * 2);
  return BFLOAT ? low_bf16(bits) : f32_of_f16(bits);
#else
#if CODE_BITS == 8
  const int code = record[lane * 16 + (2 * half + below) * 4 + (k & 3)];
#else
  const int code = (*(const u32*)(record + lane * 8 + below * 4) >> (4 * (2 * half + ((k & 3) >> 1) + 4 * (k & 1)))) & 15;
#endif
  const int part = k / SUB_BLOCK;
#if IS_FACTORED
  const Head head(group, g);
  const float2 scale = head.pair(0, q, part), minimum = HAS_MINIMUM ? head.pair(HAS_MINIMUM, q, part) : make_float2(0.f, 0.f);
#else
  const float2 scale = scale_pair(record, 0, part, g), minimum = HAS_MINIMUM ? scale_pair(record, HAS_MINIMUM, part, g) : make_float2(0.f, 0.f);
#endif
  return fmaf((float)(code - zero), below ? scale.y : scale.x, below ? minimum.y : minimum.x);
#endif
}

extern "C" __global__ void __launch_bounds__(256)
embed(const u8* weights, float* out, i64 stride, int blocks, int zero, const int* step, const int* last_tokens) {
  await_previous();  // for the step itself, which others read without waiting
  let_next_start();
  const int k = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
  if (row >= step[ROWS] || k >= 32 * blocks) return;
  const int token = row_token(step, last_tokens, row), block = k / 32;
  out[row * stride + k] = element(weights + group_offset(token / 16, block / 4, blocks), block % 4, token % 16, k % 32, zero);
}
