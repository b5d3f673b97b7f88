// Packed matrices: records of 16 outputs x 32 inputs: codes, then scales, then minima; see packing.py. They lie [pair of
// tiles][group of up to 4 blocks][tile of two][block], so that what a warp takes at once is one run of bytes.
// CODE_BITS 4 or 8: value = scale (code - zero) + minimum, a scale (and minimum) per output and SUB_BLOCK inputs. CODE_BITS 16: f16 or bf16.
// A lane (g = lane / 4, t = lane mod 4) holds outputs g and g + 8 at k = 4t..4t+3 and 16+4t..16+4t+3: A fragments in the k order of activations.
#pragma once
#include "common.cuh"

#define CODE_BYTES (64 * CODE_BITS)
#define PARTS (32 / SUB_BLOCK)
#define SCALES_BYTES (CODE_BITS == 16 ? 0 : PARTS * 16 * SCALE_BYTES)
#define RECORD_BYTES (CODE_BYTES + SCALES_BYTES * (1 + HAS_MINIMUM))

// Which record of a matrix is that of a tile and a block.
DEVICE size_t record_index(int tile, int block, int blocks) {
  const int group = block / 4, count = min(4, blocks - 4 * group);
  return (size_t)(tile / 2) * 2 * blocks + 8 * group + (tile % 2) * count + block % 4;
}

// Codes stand in the mantissa of 1024: subtracting 1024 + zero leaves the integer, exactly.
DEVICE u32 code_offset(int zero) { return (0x6400u + (u32)zero) * 0x10001u; }

#if CODE_BITS == 8
DEVICE void unpack(u32 (&a)[8], const u8* record, int lane, u32 offset) {
  const uint4 words = *(const uint4*)(record + lane * 16);
  const u32 word[4] = {words.x, words.y, words.z, words.w};
  UNROLL for (int half = 0; half < 2; half++)
    UNROLL for (int row = 0; row < 2; row++) {
      a[4 * half + row] = subtract_f16_pairs(__byte_perm(word[2 * half + row], 0x64646464, 0x4140), offset);
      a[4 * half + 2 + row] = subtract_f16_pairs(__byte_perm(word[2 * half + row], 0x64646464, 0x4342), offset);
    }
}
#elif CODE_BITS == 4
// Of a pair of nibbles, where they stand: 1024 + code, or 1024 + 16 code.
template <u32 mask> DEVICE u32 nibbles(u32 word) {
  u32 pair;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair) : "r"(word), "n"(mask), "r"(0x64006400));
  return pair;
}

DEVICE void unpack(u32 (&a)[8], const u8* record, int lane, u32 offset) {
  const uint2 words = *(const uint2*)(record + lane * 8);
  const u32 less = 0xd400d400 + 16 * (offset - 0x64006400);  // -(64 + zero)
  UNROLL for (int half = 0; half < 2; half++) {
    const u32 first = half ? words.x >> 8 : words.x, second = half ? words.y >> 8 : words.y;
    a[4 * half] = subtract_f16_pairs(nibbles<0x000f000f>(first), offset);
    a[4 * half + 1] = subtract_f16_pairs(nibbles<0x000f000f>(second), offset);
    a[4 * half + 2] = multiply_add_f16_pairs(nibbles<0x00f000f0>(first), 0x2c002c00, less);
    a[4 * half + 3] = multiply_add_f16_pairs(nibbles<0x00f000f0>(second), 0x2c002c00, less);
  }
}
#else
DEVICE void unpack(u32 (&a)[8], const u8* record, int lane, u32) {
  *(uint4*)a = *(const uint4*)(record + lane * 16);
  *(uint4*)(a + 4) = *(const uint4*)(record + 512 + lane * 16);
}
#endif

#if CODE_BITS != 16
// Scales (plane 0) or minima (plane 1) of outputs g and g + 8.
DEVICE float2 scale_pair(const u8* record, int plane, int part, int g) {
  const u8* at = record + CODE_BYTES + plane * SCALES_BYTES + (part * 8 + g) * 2 * SCALE_BYTES;
#if SCALE_BYTES == 2
  const u32 pair = *(const u32*)at;
  return make_float2(low_f16(pair), high_f16(pair));
#else
  return *(const float2*)at;
#endif
}
#endif
