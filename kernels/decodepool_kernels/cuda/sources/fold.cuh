// Blocks of 32 inputs of 16 outputs times 8 rows, added to their slice's sums: the one arithmetic of every matrix product.
//
//   s = chain of k16 tensor-core steps from zero over the planes, hi first        (SUB_BLOCK 16: one chain for each half)
//   acc = fma(s, scale, acc); acc = fma(sum of the activations, minimum, acc)      (16-bit weights: acc = acc + s)
//
// GROUP_CHAINS: weights have their factors in them, so that one chain goes on over a group of 4 blocks, and all minima of a group are one step more:
//   acc = fma(s, unit x 2^14, acc); acc = fma(m, unit of the minima x 16, acc)
#pragma once
#include "activation.cuh"
#include "heads.cuh"

#define CHAINS (GROUP_CHAINS ? 1 : PARTS)  // of a block

struct Columns {
  uint4 planes[PLANES];
  float4 sums;
};

// A lane's part of the sums of a group and 8 rows (SUMS 2), as the step of the minima takes it.
struct GroupSums {
  u32 high, low;

  METHOD GroupSums() {}
  METHOD GroupSums(const u8* at) {
#if SUMS == 2
    high = ((const u32*)at)[threadIdx.x & 31];
    low = ((const u32*)(at + GROUP_SUM_BYTES / 2))[threadIdx.x & 31];
#endif
  }
};

DEVICE void chain(float (&s)[4], const u32* a, u32 b0, u32 b1) {
#if BFLOAT
  multiply_bf16(s, a[0], a[1], a[2], a[3], b0, b1);
#else
  multiply_f16(s, a[0], a[1], a[2], a[3], b0, b1);
#endif
}

DEVICE void add_scaled(float (&acc)[4], const float (&s)[4], float2 scale) {
  acc[0] = fmaf(s[0], scale.x, acc[0]);
  acc[1] = fmaf(s[1], scale.x, acc[1]);
  acc[2] = fmaf(s[2], scale.y, acc[2]);
  acc[3] = fmaf(s[3], scale.y, acc[3]);
}

#if GROUP_CHAINS
// What a lane holds of one record: its weights.
struct Record {
  u32 codes[8];

  // Block q of a tile's group, which begins at `from` with its head.
  METHOD void load(const Head& head, const u8* from, int q, int lane, u32 offset) {
    widen(codes, *(const Words*)(from + HEAD_BYTES + q * RECORD_BYTES + lane * sizeof(Words)), head.factors(q), offset);
  }
};
#else
// What a lane holds of one record.
struct Record {
  u32 codes[8];
  float2 scales[SCALE_PLANES][PARTS];

  // Block q of a tile's group, which begins at `from` with its head.
  METHOD void load(const Head& head, const u8* from, int q, int lane, u32 offset) {
    const u8* record = from + HEAD_BYTES + q * RECORD_BYTES;
    unpack(codes, record, lane, offset);
#if CODE_BITS != 16
    UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++)
      UNROLL for (int part = 0; part < PARTS; part++)
#if IS_FACTORED
        scales[plane][part] = head.pair(plane, q, part);
#else
        scales[plane][part] = scale_pair(record, plane, part, lane >> 2);
#endif
#endif
  }
};
#endif

// One half of k of every tile's chain in s[r][n0..], step by step side by side: a chain's next step waits for its last.
template <int tiles, int columns, int all>
DEVICE void chain_half(float (&s)[tiles][all][4], const Record (&w)[tiles], const Columns (&x)[columns], int plane, int half, int n0) {
  UNROLL for (int r = 0; r < tiles; r++)
    UNROLL for (int n = 0; n < columns; n++) {
      const uint4 b = x[n].planes[plane];
      chain(s[r][n0 + n], w[r].codes + 4 * half, half ? b.z : b.x, half ? b.w : b.y);
    }
}

// One of a block's CHAINS chains of every tile.
template <int tiles, int columns, int all>
DEVICE void chain_part(float (&s)[tiles][all][4], const Record (&w)[tiles], const Columns (&x)[columns], int part, int n0 = 0) {
  UNROLL for (int plane = 0; plane < PLANES; plane++)
    UNROLL for (int half = CHAINS == 1 ? 0 : part; half < (CHAINS == 1 ? 2 : part + 1); half++) chain_half(s, w, x, plane, half, n0);
}

#if GROUP_CHAINS
// A block of `tiles` x 16 outputs times `columns` x 8 rows, in the chains chains[r][n0..] of its group.
template <int tiles, int columns, int all> DEVICE void fold_blocks(float (&chains)[tiles][all][4], int n0, const Record (&w)[tiles], const Columns (&x)[columns]) {
  chain_part(chains, w, x, 0, n0);
}

// The minima's step of a group and 8 rows, into minima[r][n]; it waits for no other, and what comes of it is there when the chains have ended.
template <int tiles, int all> DEVICE void multiply_minima(float (&minima)[tiles][all][4], int n, const Head (&heads)[tiles], const GroupSums& sums) {
#if HAS_MINIMUM
  UNROLL for (int r = 0; r < tiles; r++) {
    const u32 above = heads[r].minima(0, threadIdx.x & 3), below = heads[r].minima(1, threadIdx.x & 3);
    multiply_f16(minima[r][n], above, below, above, below, sums.high, sums.low);
  }
#endif
}

// The end of a group: its chains, and what came of its minima, added to acc[r][n].
template <int tiles, int all>
DEVICE void end_group(float (&acc)[tiles][all][4], int n, const float (&chains)[tiles][all][4], const float (&minima)[tiles][all][4], const Head (&heads)[tiles]) {
  UNROLL for (int r = 0; r < tiles; r++) {
    add_scaled(acc[r][n], chains[r][n], heads[r].unit_pair(0));
#if HAS_MINIMUM
    add_scaled(acc[r][n], minima[r][n], heads[r].unit_pair(1));
#endif
  }
}

// The same with the minima's step.
template <int tiles, int all>
DEVICE void end_group(float (&acc)[tiles][all][4], int n, const float (&chains)[tiles][all][4], const Head (&heads)[tiles], const GroupSums& sums) {
  float minima[tiles][all][4] = {};
  multiply_minima(minima, n, heads, sums);
  end_group(acc, n, chains, minima, heads);
}
#else
// The activations' sums over a part, as they stand beside a chain's results.
DEVICE void part_sums(float (&sums)[4], const Columns& x, int part) {
  const float first = PARTS == 1 ? __fadd_rn(x.sums.x, x.sums.y) : part ? x.sums.y : x.sums.x;
  const float second = PARTS == 1 ? __fadd_rn(x.sums.z, x.sums.w) : part ? x.sums.w : x.sums.z;
  sums[0] = sums[2] = first;
  sums[1] = sums[3] = second;
}

// Blocks of `tiles` x 16 outputs times `columns` x 8 rows, added to the sums acc[r][n..].
template <int tiles, int columns, int all> DEVICE void fold_blocks(float (&acc)[tiles][all][4], int n0, const Record (&w)[tiles], const Columns (&x)[columns]) {
  UNROLL for (int part = 0; part < PARTS; part++) {
    float s[tiles][columns][4] = {};
    chain_part(s, w, x, part);
    UNROLL for (int r = 0; r < tiles; r++)
      UNROLL for (int n = 0; n < columns; n++) {
#if CODE_BITS == 16
        UNROLL for (int i = 0; i < 4; i++) acc[r][n0 + n][i] = __fadd_rn(acc[r][n0 + n][i], s[r][n][i]);
#else
        add_scaled(acc[r][n0 + n], s[r][n], w[r].scales[0][part]);
#endif
#if HAS_MINIMUM
        float sums[4];
        part_sums(sums, x[n], part);
        add_scaled(acc[r][n0 + n], sums, w[r].scales[1][part]);
#endif
      }
  }
}

template <int tiles, int all> DEVICE void end_group(float (&)[tiles][all][4], int, const float (&)[tiles][all][4], const Head (&)[tiles], const GroupSums&) {}
template <int tiles, int all> DEVICE void multiply_minima(float (&)[tiles][all][4], int, const Head (&)[tiles], const GroupSums&) {}
template <int tiles, int all>
DEVICE void end_group(float (&)[tiles][all][4], int, const float (&)[tiles][all][4], const float (&)[tiles][all][4], const Head (&)[tiles]) {}
#endif
