// The heads of k-quants' groups: factors, a byte each, and the f16 units that they multiply. What of a scale goes where: GROUP_CHAINS, a factor into
// the weights and a unit behind the group's chain; else both into an f32 behind each block's.
#pragma once
#include "weights.cuh"

#if IS_FACTORED
#define HEAD_WORDS (SCALE_PLANES * 2 * PARTS)
// A unit times one of the four bytes of a word, less 128: the byte stands in the mantissa of 2^15, and every step is exact.
DEVICE float scale_of_byte(float unit, u32 word, int byte) {
  return fmaf(unit, __uint_as_float(__byte_perm(word, 0x47000000, 0x7404 | byte << 4)), unit * -32896.f);
}

#if GROUP_CHAINS
// Two of a word's factors in f16, each more by 1152: bytes stand in the mantissa of 1024. The selector's two low bytes say which.
DEVICE u32 factor_pair(u32 word, u32 selector) { return __byte_perm(word, 0x64646464, 0x4040 | selector); }

// What the codes of a block are multiplied by, pairs of halves alike, of outputs g and g + 8 and each part. Every step is exact.
struct Factors {
  u32 first[2][PARTS], second[2][PARTS];  // 4 bits: factor x 2^10, x 2^6; 8 bits: factor x 2^-14, x -2^-4

  // From two factors more by 1152: those of two blocks, of which this one is `block`, or of its two parts.
  METHOD void set(int output, u32 pair, int block) {
#if CODE_BITS == 4
    const u32 factors = subtract_f16_pairs(pair, 0x64806480), of_first = multiply_f16_pairs(factors, 0x64006400), of_second = multiply_f16_pairs(factors, 0x54005400);
#else
    const u32 of_second = multiply_add_f16_pairs(pair, 0xac00ac00, 0x54805480), of_first = multiply_f16_pairs(of_second, 0x94009400);
#endif
    UNROLL for (int part = 0; part < PARTS; part++) {
      first[output][part] = doubled(of_first, PARTS == 1 ? block : part);
      second[output][part] = doubled(of_second, PARTS == 1 ? block : part);
    }
  }
};

// Weights: (code - zero) x factor x 2^-14 in f16, a normal number or 0, exactly. What `widen` takes of a zero is -zero x 2^-24; where there are minima
// there is none.
DEVICE u32 code_offset(int zero) { return (0x8000u + (u32)zero) * 0x10001u; }

#if CODE_BITS == 8
// A code stands in the mantissa of 1024: both times the factor, less 1024 times it.
DEVICE void widen(u32 (&a)[8], const Words& words, const Factors& factors, u32) {
  const u32 word[4] = {words.x, words.y, words.z, words.w};
  UNROLL for (int half = 0; half < 2; half++)
    UNROLL for (int row = 0; row < 2; row++) {
      const u32 times = factors.first[row][half * (PARTS - 1)], less = factors.second[row][half * (PARTS - 1)];
      a[4 * half + row] = multiply_add_f16_pairs(__byte_perm(word[2 * half + row], 0x64646464, 0x4140), times, less);
      a[4 * half + 2 + row] = multiply_add_f16_pairs(__byte_perm(word[2 * half + row], 0x64646464, 0x4342), times, less);
    }
}
#else
// Codes are subnormal numbers where they lie: the lower of a byte x 2^-24, the upper x 2^-20.
DEVICE u32 times_factor(u32 codes, u32 factor, u32 less) { return HAS_MINIMUM ? multiply_f16_pairs(codes, factor) : multiply_add_f16_pairs(codes, factor, less); }

DEVICE void widen(u32 (&a)[8], const Words& words, const Factors& factors, u32 offset) {
  UNROLL for (int half = 0; half < 2; half++)
    UNROLL for (int row = 0; row < 2; row++) {
      const int part = half * (PARTS - 1);
      const u32 codes = (row ? words.y : words.x) >> 8 * half, less = multiply_f16_pairs(factors.first[row][part], offset);
      a[4 * half + row] = times_factor(codes & 0x000f000f, factors.first[row][part], less);
      a[4 * half + 2 + row] = times_factor(codes & 0x00f000f0, factors.second[row][part], less);
    }
}
#endif
#endif

// The head of a tile's group as a lane needs it: factors of outputs g and g + 8, a byte a part of each block, and what they multiply.
struct Head {
  u32 words[HEAD_WORDS];  // [plane][output of two] of PARTS words, bytes [block][part]
  float units[SCALE_PLANES][2];

  METHOD Head() {}
  METHOD Head(const u8* from, int g) {
    UNROLL for (int i = 0; i < HEAD_WORDS / 4; i++) *(uint4*)(words + 4 * i) = *(const uint4*)(from + g * (HEAD_WORDS * 4) + 16 * i);
    UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++) {
      const u32 halves = *(const u32*)(from + FACTORS_BYTES + g * (SCALE_PLANES * 4) + 4 * plane);
      units[plane][0] = low_f16(halves);
      units[plane][1] = high_f16(halves);
    }
  }

  // The word of block q's factors, of output g (0) or g + 8 (1).
  METHOD u32 word_of(int plane, int output, int q) const {
    const u32* of_output = words + (plane * 2 + output) * PARTS;
    return PARTS == 2 && q >= 2 ? of_output[PARTS - 1] : of_output[0];
  }

  // Scales (plane 0) or minima (plane 1) of block q.
  METHOD float2 pair(int plane, int q, int part) const {
    const int byte = q * PARTS + part;
    float scales[2];
    UNROLL for (int i = 0; i < 2; i++) scales[i] = scale_of_byte(units[plane][i], word_of(plane, i, q), byte % 4);
    return make_float2(scales[0], scales[1]);
  }

#if GROUP_CHAINS
  // What block q's codes are multiplied by.
  METHOD Factors factors(int q) const {
    Factors f;
    UNROLL for (int i = 0; i < 2; i++) f.set(i, factor_pair(word_of(0, i, q), (PARTS == 1 ? q & 2 : 2 * (q & 1)) * 0x101 + 0x100), q & 1);
    return f;
  }

  // The factors of the minima of block t's halves, of output g (0) or g + 8 (1): the pair that lane t has of the minima's step.
  METHOD u32 minima(int output, int t) const {
    const u32 selector = PARTS == 1 ? t * 0x101 : (t & 1) * 0x202 + 0x100;
    return subtract_f16_pairs(factor_pair(word_of(1, output, t), selector), 0x64806480);
  }

  // What a group's chain (plane 0) and its minima's step (plane 1) are multiplied by, of outputs g and g + 8.
  METHOD float2 unit_pair(int plane) const {
    const float times = plane == 0 ? 16384.f : 16.f;
    return make_float2(units[plane][0] * times, units[plane][1] * times);
  }
#endif
};
#else
struct Head {
  METHOD Head() {}
  METHOD Head(const u8*, int) {}
};
#endif
