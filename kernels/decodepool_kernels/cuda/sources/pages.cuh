// A page of keys or values of one kv head: 64 tokens. One layer: [page][kv head][keys | values].
//
// KV_BITS 16: f16 in panels of up to 64 dims. A token's row in a panel holds its dims in chunks of 16 bytes, exchanged by token so that any 8 tokens'
// chunks lie in different banks. KV_BITS 8: q8_0, a code (+ 128) an element and an f16 scale for each 32 dims of a token; the element is
// f16(scale x code). Codes lie as a tensor core's first operand has them, two steps at once: [16 rows][two steps of 16][lane][step][8], rows are tokens and
// steps dims for keys, the other way about for values. Scales follow as a lane wants them: of keys [16 tokens][8 tokens][32 dims][token, token + 8], of
// values [32 dims][32 tokens][two tokens of 8][step][two of the first 8, two of the last].
#pragma once
#include "step.cuh"

#define QUANT_DIMS 32

DEVICE constexpr int head_page_bytes(int head_dim) {
  return PAGE_TOKENS * head_dim * KV_BITS / 8 + (KV_BITS == 8 ? PAGE_TOKENS * (head_dim / QUANT_DIMS) * 2 : 0);
}

// Where chunk `chunk` (8 dims) of a token lies within its head's keys or values in f16.
DEVICE int chunk_at(int head_dim, int token, int chunk) {
  const int panel = chunk >> 3, chunks = min(8, head_dim / 8 - 8 * panel);
  const int exchange = (chunks == 8 ? token : chunks == 4 ? token >> 1 : token >> 2) & (chunks - 1);
  return panel * (PAGE_TOKENS * 128) + token * chunks * 16 + ((chunk & 7) ^ exchange) * 16;
}

// Where a code lies, by its place in the operand of `steps` steps.
DEVICE int code_at(int row, int k, int steps) {
  const int lane = 4 * (row & 7) + ((k & 7) >> 1), pair = (row >> 3 & 1) + (k >> 3 & 1) * 2;
  return ((row >> 4) * (steps / 2) + (k >> 5)) * 512 + lane * 16 + (k >> 4 & 1) * 8 + pair * 2 + (k & 1);
}

// Where the scale of 32 dims of a token lies, from the first scale on, in scales.
DEVICE int key_scale_at(int head_dim, int token, int dim) {
  return ((token / 16 * 8 + token % 8) * (head_dim / QUANT_DIMS) + dim / QUANT_DIMS) * 2 + token / 8 % 2;
}

DEVICE int value_scale_at(int token, int dim) {
  return dim / QUANT_DIMS * PAGE_TOKENS + token / 32 * 32 + token % 8 / 2 * 8 + token / 8 % 4 * 2 + token % 2;
}

DEVICE u8* head_page(u8* layer, int page, int kv_heads, int kv_head, int head_dim) {
  return layer + ((size_t)page * kv_heads + kv_head) * 2 * head_page_bytes(head_dim);
}

// Codes as f16 times a scale each: those of the first register's pair, then of the second's.
DEVICE void widen_codes(u32 codes, u32 first_scales, u32 second_scales, u32& first, u32& second) {
  const u32 zero = 0x64806480;  // 1024 + 128 in both halves
  first = multiply_f16_pairs(subtract_f16_pairs(__byte_perm(codes, 0x64646464, 0x4140), zero), first_scales);
  second = multiply_f16_pairs(subtract_f16_pairs(__byte_perm(codes, 0x64646464, 0x4342), zero), second_scales);
}

// A lane's part of 16 tokens' keys, 16 dims from 16 step on and the next 16 (step is even), as the first operands; the half of a page lies in shared memory.
DEVICE void widen_keys(u32 (&a)[2][4], const u8* half, int head_dim, int tokens, int step) {
  const int lane = threadIdx.x & 31;
  const uint4 codes = *(const uint4*)(half + (tokens * (head_dim / 32) + step / 2) * 512 + lane * 16);
  const u32 scales = *(const u32*)(half + PAGE_TOKENS * head_dim + 2 * key_scale_at(head_dim, tokens * 16 + (lane >> 2), step * 16));
  const u32 upper = __byte_perm(scales, 0, 0x1010), lower = __byte_perm(scales, 0, 0x3232);
  widen_codes(codes.x, upper, lower, a[0][0], a[0][1]);
  widen_codes(codes.y, upper, lower, a[0][2], a[0][3]);
  widen_codes(codes.z, upper, lower, a[1][0], a[1][1]);
  widen_codes(codes.w, upper, lower, a[1][2], a[1][3]);
}

// The same of values: 16 dims, 16 tokens from 16 step on and the next 16.
DEVICE void widen_values(u32 (&a)[2][4], const u8* half, int head_dim, int dims, int step) {
  const int lane = threadIdx.x & 31;
  const uint4 codes = *(const uint4*)(half + (dims * (PAGE_TOKENS / 32) + step / 2) * 512 + lane * 16);
  const uint4 scales = *(const uint4*)(half + PAGE_TOKENS * head_dim + 2 * value_scale_at(step * 16 + 2 * (lane & 3), dims * 16));
  widen_codes(codes.x, scales.x, scales.x, a[0][0], a[0][1]);
  widen_codes(codes.y, scales.y, scales.y, a[0][2], a[0][3]);
  widen_codes(codes.z, scales.z, scales.z, a[1][0], a[1][1]);
  widen_codes(codes.w, scales.w, scales.w, a[1][2], a[1][3]);
}

DEVICE float saturated(float value) { return value != value ? value : fminf(fmaxf(value, -65504.f), 65504.f); }
