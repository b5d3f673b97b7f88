// Sums of a slice where every block's chain is folded by itself: a block's records are unpacked while the one before is in the tensor cores.
#pragma once

#if CODE_BITS == 16
#define EACH_BLOCK _Pragma("unroll 1")  // unrolled, registers run out, and ptxas waits for every step of the tensor cores by itself
#else
#define EACH_BLOCK UNROLL
#endif

// acc += a block: its records times the rows at `from`, which are `tiles` to the tensor cores. `ahead` runs while they work.
template <class Ahead> DEVICE void fold_block(float (&acc)[TILES][4], const Record& w, u32 from, u64 tiles, u32 offset, Ahead ahead) {
  UNROLL for (int part = 0; part < PARTS; part++) {
    float s[TILES][4];
    begin_steps();
    UNROLL for (int plane = 0; plane < PLANES; plane++)
      UNROLL for (int half = PARTS == 1 ? 0 : part; half < (PARTS == 1 ? 2 : part + 1); half++)
        multiply_group(s, w.codes + 4 * half, tiles + (plane * FRAGMENT_BYTES + half * 32) / 16, plane > 0 || (PARTS == 1 && half > 0));
    commit_steps();
    if (part == PARTS - 1) ahead();
    await_steps<0>();
    hold(w.codes, offset);
    UNROLL for (int n = 0; n < TILES; n++) {
#if CODE_BITS == 16
      UNROLL for (int j = 0; j < 4; j++) acc[n][j] = __fadd_rn(acc[n][j], s[n][j]);
#else
      add_scaled(acc[n], s[n], w.scales[0][part]);
#endif
#if HAS_MINIMUM
      float sums[4];
      Columns x;
      x.sums = shared_at<float4>(from + PLANES_BYTES + (n * 8 + 2 * (threadIdx.x & 3)) * 8);
      part_sums(sums, x, part);
      add_scaled(acc[n], sums, w.scales[1][part]);
#endif
    }
  }
}

struct Way : Stream {
  METHOD void load(Record& w, const u8* from, int q) const { w.load(Head(from, (threadIdx.x & 31) >> 2), from, q, threadIdx.x & 31, offset); }
  METHOD u32 column(int q) const { return columns.slot() + q % COLUMN_BLOCKS * COLUMN_BYTES; }
  METHOD u64 tiles_of(int q) const { return tiles_at(rows) + q % COLUMN_BLOCKS * (COLUMN_BYTES / 16); }

  // acc over a slice's blocks. Each block's records are unpacked while the one before is in the tensor cores. Only the last group may be short.
  METHOD void sum(float (&acc)[TILES][4], int slice, int blocks) {
    int left = blocks - slice * GROUP_BLOCKS;
    if (left <= 0) return;
    weights.wait();
    const u8* from = own_records(slots, weights, min(GROUP_BLOCKS, left));
    Record w;
    load(w, from, 0);
    for (; left >= GROUP_BLOCKS; left -= SLICES * GROUP_BLOCKS) {
      const int after = left - SLICES * GROUP_BLOCKS;
      EACH_BLOCK for (int q = 0; q < GROUP_BLOCKS; q++) {
        Record next;
        if (q % COLUMN_BLOCKS == 0) wait_columns();
        fold_block(acc, w, column(q), tiles_of(q), offset, [&]() {
          if (q + 1 < GROUP_BLOCKS) {
            load(next, from, q + 1);
            return;
          }
          weights.give_back<true>();
          if (after <= 0) return;
          weights.wait();
          from = own_records(slots, weights, min(GROUP_BLOCKS, after));
          load(next, from, 0);
        });
        if (q % COLUMN_BLOCKS == COLUMN_BLOCKS - 1) columns.give_back<HAS_MINIMUM>();
        w = next;
      }
    }
    if (left > 0) sum_short(acc, w, from, left);
  }

  // The last group, of fewer blocks; w is the first.
  METHOD void sum_short(float (&acc)[TILES][4], Record& w, const u8* from, int count) {
    for (int q = 0; q < count; q++) {
      if (q % COLUMN_BLOCKS == 0) wait_columns();
      if (q > 0) load(w, from, q);
      fold_block(acc, w, column(q), tiles_of(q), offset, []() {});
      if (q % COLUMN_BLOCKS == COLUMN_BLOCKS - 1 || q + 1 == count) columns.give_back<HAS_MINIMUM>();
    }
    weights.give_back<true>();
  }
};
