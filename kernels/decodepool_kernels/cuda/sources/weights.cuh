// Packed matrices: records of 16 outputs x 32 inputs: codes, then scales, then minima; see packing.py. They lie [pair of
// tiles][group of up to 4 blocks][tile of two][block], so that what a warp takes at once is one run of bytes.
// CODE_BITS 4 or 8: value = scale (code - zero) + minimum, a scale (and minimum) per output and SUB_BLOCK inputs. CODE_BITS 16: f16 or bf16.
// SCALE_BYTES 1: a scale is a byte (less 128) times an f16 that its group shares; both stand before the group's records, in its head (heads.cuh).
// A lane (g = lane / 4, t = lane mod 4) holds outputs g and g + 8 at k = 4t..4t+3 and 16+4t..16+4t+3: A fragments in the k order of activations.
#pragma once
#include "common.cuh"

#define CODE_BYTES (64 * CODE_BITS)
#define PARTS (32 / SUB_BLOCK)
#define IS_FACTORED (SCALE_BYTES == 1)
#define SCALES_BYTES (CODE_BITS == 16 || IS_FACTORED ? 0 : PARTS * 16 * SCALE_BYTES)
#define RECORD_BYTES (CODE_BYTES + SCALES_BYTES * (1 + HAS_MINIMUM))
#define SCALE_PLANES (1 + HAS_MINIMUM)
#define FACTORS_BYTES (IS_FACTORED * SCALE_PLANES * PARTS * 64)
#define HEAD_BYTES (FACTORS_BYTES + IS_FACTORED * SCALE_PLANES * 32)

// Bytes of a tile's group of `count` blocks: its head, then its records.
DEVICE int group_bytes(int count) { return HEAD_BYTES + count * RECORD_BYTES; }

// Where a tile's group begins in a matrix.
DEVICE size_t group_offset(int tile, int group, int blocks) {
  const int groups = (blocks + 3) / 4, count = min(4, blocks - 4 * group);
  return (size_t)(tile / 2) * 2 * ((size_t)groups * HEAD_BYTES + (size_t)blocks * RECORD_BYTES) + (size_t)group * 2 * group_bytes(4) + tile % 2 * group_bytes(count);
}

// What a lane reads of a record's codes at once; of 16 bits, a half of k.
#if CODE_BITS == 4
typedef uint2 Words;
#else
typedef uint4 Words;
#endif

#if !GROUP_CHAINS
// Codes stand in the mantissa of 1024: subtracting 1024 + zero leaves the integer, exactly.
DEVICE u32 code_offset(int zero) { return (0x6400u + (u32)zero) * 0x10001u; }

#if CODE_BITS == 8
DEVICE void widen(u32 (&a)[8], const Words& words, u32 offset) {
  const u32 word[4] = {words.x, words.y, words.z, words.w};
  UNROLL for (int half = 0; half < 2; half++)
    UNROLL for (int row = 0; row < 2; row++) {
      a[4 * half + row] = subtract_f16_pairs(__byte_perm(word[2 * half + row], 0x64646464, 0x4140), offset);
      a[4 * half + 2 + row] = subtract_f16_pairs(__byte_perm(word[2 * half + row], 0x64646464, 0x4342), offset);
    }
}
#elif CODE_BITS == 4
// A byte of two codes stands in the mantissa of 1024; less 1024 + 16 x the upper + zero it is the lower code, and that divided by 16 the upper.
DEVICE void widen_bytes(u32& lower, u32& upper, u32 bytes, u32 offset, u32 less) {
  u32 sixteens;
  asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xea;" : "=r"(sixteens) : "r"(bytes), "r"(offset));
  lower = subtract_f16_pairs(bytes, sixteens);
  upper = multiply_add_f16_pairs(sixteens, 0x2c002c00, less);
}

DEVICE void widen(u32 (&a)[8], const Words& words, u32 offset) {
  const u32 less = 0xd400d400 + 17 * (offset - 0x64006400);  // -(64 + zero + zero / 16)
  UNROLL for (int row = 0; row < 2; row++) {
    const u32 word = row ? words.y : words.x;
    u32 even;
    asm("lop3.b32 %0, %1, 0x00ff00ff, 0x64006400, 0xea;" : "=r"(even) : "r"(word));
    widen_bytes(a[row], a[2 + row], even, offset, less);
    widen_bytes(a[4 + row], a[6 + row], __byte_perm(word, 0x64646464, 0x4341), offset, less);
  }
}
#endif

DEVICE void unpack(u32 (&a)[8], const u8* record, int lane, u32 offset) {
#if CODE_BITS == 16
  *(uint4*)a = *(const uint4*)(record + lane * 16);
  *(uint4*)(a + 4) = *(const uint4*)(record + 512 + lane * 16);
#else
  widen(a, *(const Words*)(record + lane * sizeof(Words)), offset);
#endif
}
#endif

#if CODE_BITS != 16 && !IS_FACTORED
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
