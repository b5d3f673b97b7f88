// Sums of a slice where the chain of every block, or of each half that has a scale of its own, is folded by itself: a block's records are unpacked
// while the one before is in the tensor cores. OVERLAPS: a chain is folded while the next is in them too, where registers hold both and a stage of
// columns is a whole group.
#pragma once

#define OVERLAPS (CODE_BITS == 8 && !HAS_MINIMUM && COLUMN_BLOCKS == GROUP_BLOCKS && (TILES <= 4 || (HALF && TILES <= 8)))

#define CHAINS (GROUP_BLOCKS * PARTS)  // of a group

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

  // acc over a slice's blocks. Only the last group may be short.
  METHOD void sum(float (&acc)[TILES][4], int slice, int blocks) {
    int left = blocks - slice * GROUP_BLOCKS;
    if (left <= 0) return;
    weights.wait();
    const u8* from = own_records(slots, weights, min(GROUP_BLOCKS, left));
    Record w;
    load(w, from, 0);
    for (; left >= GROUP_BLOCKS; left -= SLICES * GROUP_BLOCKS) sum_group(acc, w, from, left - SLICES * GROUP_BLOCKS);
    if (left > 0) sum_short(acc, w, from, left);
  }

  // The slot at hand is read: on to the slice's next, where blocks are left, and its first record.
  METHOD void take_next(Record& w, const u8*& from, int left) {
    weights.give_back<true>();
    if (left <= 0) return;
    weights.wait();
    from = own_records(slots, weights, min(GROUP_BLOCKS, left));
    load(w, from, 0);
  }

  // acc over a whole group, of which w is the first record, and then the next group's; `left` blocks come after it.
#if OVERLAPS
  METHOD void sum_group(float (&acc)[TILES][4], Record& w, const u8*& from, int left) {
    float s[2][TILES][4];
    Record held[2] = {w};
    wait_columns();
    UNROLL for (int chain = 0; chain < CHAINS; chain++) {
      const int q = chain / PARTS;
      begin_chain(s[chain % 2], held[q % 2], tiles_of(q), chain % PARTS);
      if (chain > 0) {
        await_steps<1>();
        end_chain(acc, s[1 - chain % 2], held[(chain - 1) / PARTS % 2], (chain - 1) % PARTS);
      }
      if (chain % PARTS == 0 && q + 1 < GROUP_BLOCKS) load(held[1 - q % 2], from, q + 1);
    }
    take_next(w, from, left);
    await_steps<0>();
    end_chain(acc, s[1], held[1], PARTS - 1);
    columns.give_back<false>();
  }
  METHOD void begin_chain(float (&s)[TILES][4], const Record& w, u64 tiles, int part) const {
    begin_steps();
    UNROLL for (int plane = 0; plane < PLANES; plane++)
      UNROLL for (int half = part; half <= part + 2 - PARTS; half++)
        multiply_group(s, w.codes + 4 * half, tiles + (plane * FRAGMENT_BYTES + half * 32) / 16, plane > 0 || half > part);
    commit_steps();
  }
  METHOD void end_chain(float (&acc)[TILES][4], const float (&s)[TILES][4], const Record& w, int part) const {
    if (part == PARTS - 1) hold(w.codes, offset);
    UNROLL for (int n = 0; n < TILES; n++) add_scaled(acc[n], s[n], w.scales[0][part]);
  }
#else
  METHOD void sum_group(float (&acc)[TILES][4], Record& w, const u8*& from, int left) {
    EACH_BLOCK for (int q = 0; q < GROUP_BLOCKS; q++) {
      Record next;
      if (q % COLUMN_BLOCKS == 0) wait_columns();
      fold_block(acc, w, column(q), tiles_of(q), offset, [&]() {
        if (q + 1 < GROUP_BLOCKS) load(next, from, q + 1);
        else take_next(next, from, left);
      });
      if (q % COLUMN_BLOCKS == COLUMN_BLOCKS - 1) columns.give_back<HAS_MINIMUM>();
      w = next;
    }
  }
#endif

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
