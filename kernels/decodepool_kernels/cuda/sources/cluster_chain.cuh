// A group of a slice by the warpgroup that has the unit's 64 outputs of it, a tile a warp: a block is widened while the one before is in the tensor cores.
// Where a group is one chain, the minima's step follows the last block's; else what has come of a block is folded before the next one's steps.
#pragma once
#include "wgmma.cuh"

typedef float Chains[CHAINS][TILES][4];

// Sets a block's steps going, by its rows in shared memory; `goes_on` where its chains do.
DEVICE void multiply_block(Chains& s, const Record& w, u64 rows, bool goes_on) {
  begin_steps();
  UNROLL for (int chain = 0; chain < CHAINS; chain++)
    UNROLL for (int plane = 0; plane < PLANES; plane++)
      UNROLL for (int half = CHAINS == 1 ? 0 : chain; half < (CHAINS == 1 ? 2 : chain + 1); half++)
        multiply_group(s[chain], w.codes + 4 * half, rows + (plane * FRAGMENT_BYTES + half * 32) / 16, goes_on || plane > 0 || (CHAINS == 1 && half > 0));
  commit_steps();
}

#if GROUP_CHAINS
// The minima's step, and the group's end.
DEVICE void end_group(float (&acc)[TILES][4], const Chains& s, const Record (&w)[2], const Head& head, u32 sums, u32 offset) {
#if HAS_MINIMUM
  float of_minima[TILES][4];
  u32 minima[4];
  UNROLL for (int i = 0; i < 2; i++) minima[i] = minima[2 + i] = head.minima(i, threadIdx.x & 3);
  begin_steps();
  multiply_group(of_minima, minima, sums_at(__shfl_sync(~0u, sums, 0)), 0);
  commit_steps();
  await_steps<0>();
  hold(minima, offset);
#else
  await_steps<0>();
#endif
  UNROLL for (int i = 0; i < 2; i++) hold(w[i].codes, offset);
  UNROLL for (int n = 0; n < TILES; n++) add_scaled(acc[n], s[0][n], head.unit_pair(0));
#if HAS_MINIMUM
  UNROLL for (int n = 0; n < TILES; n++) add_scaled(acc[n], of_minima[n], head.unit_pair(1));
#endif
}
#else
// What has come of a block whose sums of rows, where minima need them, lie at `sums`.
DEVICE void end_block(float (&acc)[TILES][4], const Chains& s, const Record& w, const u8* sums, u32 offset) {
  await_steps<0>();
  hold(w.codes, offset);
  UNROLL for (int part = 0; part < PARTS; part++)
    UNROLL for (int n = 0; n < TILES; n++) {
#if CODE_BITS == 16
      UNROLL for (int i = 0; i < 4; i++) acc[n][i] = __fadd_rn(acc[n][i], s[part][n][i]);
#else
      add_scaled(acc[n], s[part][n], w.scales[0][part]);
#endif
#if SUMS == 1
      Columns x;
      float of_part[4];
      x.sums = *(const float4*)(sums + n * 64 + (threadIdx.x & 3) * 16);
      part_sums(of_part, x, part);
      add_scaled(acc[n], of_part, w.scales[1][part]);
#endif
    }
}
#endif

// acc += a group of `count` blocks, of which a warp has one tile.
template <bool is_whole>
DEVICE void fold_group(float (&acc)[ROW_TILES][TILES][4], const u8* weights, const u8* columns, int tile, int count, u32 offset) {
  const int lane = threadIdx.x & 31;
  const u8 *from = weights + tile / 2 * PAIR_BYTES + tile % 2 * group_bytes(is_whole ? GROUP_BLOCKS : count), *sums = columns + GROUP_BLOCKS * PLANES_BYTES;
  const u64 rows = tiles_at(__shfl_sync(~0u, rows_at(shared_address(columns)), 0));  // alike in all lanes, as the compiler cannot know
  const Head head(from, lane >> 2);
  Chains s;
  Record w[2];
  w[0].load(head, from, 0, lane, offset);
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    if (!is_whole && q >= count) break;
    multiply_block(s, w[q % 2], rows + q * (PLANES_BYTES / 16), GROUP_CHAINS && q > 0);
    if (GROUP_CHAINS && q > 0) {
      await_steps<1>();
      hold(w[1 - q % 2].codes, offset);
    }
    if (q + 1 < GROUP_BLOCKS && (is_whole || q + 1 < count)) w[1 - q % 2].load(head, from, q + 1, lane, offset);
#if !GROUP_CHAINS
    end_block(acc[0], s, w[q % 2], sums + q * SUMS_BYTES, offset);
#endif
  }
#if GROUP_CHAINS
  end_group(acc[0], s, w, head, shared_address(sums), offset);
#endif
}
