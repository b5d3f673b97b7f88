// Sums of a slice where one chain goes through a whole group: a block is widened while the one before is in the tensor cores, and what has come
// is folded once a group, then the minima's product from the same registers.
#pragma once

// What the end of a group needs of its head, which is given back before.
struct GroupEnd {
  float2 units[SCALE_PLANES];
  u32 minima[4];

  METHOD void load(const u8* from) {
    const Head head(from, (threadIdx.x & 31) >> 2);
    UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++) units[plane] = head.unit_pair(plane);
#if HAS_MINIMUM
    UNROLL for (int i = 0; i < 2; i++) minima[i] = minima[2 + i] = head.minima(i, threadIdx.x & 3);
#endif
  }
};

struct Way : Stream {
  METHOD Words words_at(const u8* from, int q) const {
    return *(const Words*)(from + HEAD_BYTES + q * RECORD_BYTES + (threadIdx.x & 31) * sizeof(Words));
  }

  // Sets the steps of block q going.
  METHOD void multiply_block(float (&s)[TILES][4], const Record& w, int q) const {
    const u64 at = tiles_at(rows) + q % COLUMN_BLOCKS * (COLUMN_BYTES / 16);
    begin_steps();
    UNROLL for (int plane = 0; plane < PLANES; plane++)
      UNROLL for (int half = 0; half < 2; half++)
        multiply_group(s, w.codes + 4 * half, at + (plane * FRAGMENT_BYTES + half * 32) / 16, q > 0 || plane > 0 || half > 0);
    commit_steps();
  }

  METHOD void fold(float (&acc)[TILES][4], const float (&s)[TILES][4], float2 unit) const {
    UNROLL for (int n = 0; n < TILES; n++) add_scaled(acc[n], s[n], unit);
  }

  // The chain s has come; its last stage of columns is at hand. `ahead` runs while the tensor cores work.
  template <class Ahead> METHOD void end_group(float (&acc)[TILES][4], float (&s)[TILES][4], const GroupEnd& end, Ahead ahead) {
    fold(acc, s, end.units[0]);
#if HAS_MINIMUM
    begin_steps();
    multiply_group(s, end.minima, sums_at(__shfl_sync(~0u, columns.slot(), 0) + STAGE_SUMS), 0);
    commit_steps();
    ahead();
    await_steps<0>();
    hold(end.minima, offset);
    fold(acc, s, end.units[1]);
#else
    ahead();
#endif
    columns.give_back<false>();
  }

  // acc over a slice's blocks. Only the last group may be short.
  METHOD void sum(float (&acc)[TILES][4], int slice, int blocks) {
    int left = blocks - slice * GROUP_BLOCKS;
    if (left <= 0) return;
    const int lane = threadIdx.x & 31;
    weights.wait();
    const u8* from = own_records(slots, weights, min(GROUP_BLOCKS, left));
    Head head(from, lane >> 2);
    Record w[2];
    w[0].load(head, from, 0, lane, offset);
    for (; left >= GROUP_BLOCKS; left -= SLICES * GROUP_BLOCKS) {
      const int after = left - SLICES * GROUP_BLOCKS;
      float s[TILES][4];
      GroupEnd end;
      u32 used = 0;
      UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
        Words words;
        if (q + 1 < GROUP_BLOCKS) words = words_at(from, q + 1);
        if (q % COLUMN_BLOCKS == 0) wait_columns();
        multiply_block(s, w[q % 2], q);
        if (q > 0) {
          await_steps<1>();
          hold(w[1 - q % 2].codes, offset);
          if (q % COLUMN_BLOCKS == 0) give_back_slot(used);
        }
        if (q + 1 < GROUP_BLOCKS) {
          if (q % COLUMN_BLOCKS == COLUMN_BLOCKS - 1) used = columns.leave();
          widen(w[1 - q % 2].codes, words, head.factors(q + 1), offset);
          continue;
        }
        end.load(from);
        weights.give_back<true>();
        if (after <= 0) continue;
        weights.wait();
        from = own_records(slots, weights, min(GROUP_BLOCKS, after));
      }
      await_steps<0>();
      hold(w[1].codes, offset);
      end_group(acc, s, end, [&]() {
        if (after <= 0) return;
        head = Head(from, lane >> 2);
        w[0].load(head, from, 0, lane, offset);
      });
    }
    if (left > 0) sum_short(acc, from, left);
  }

  // The last group, of fewer blocks.
  METHOD void sum_short(float (&acc)[TILES][4], const u8* from, int count) {
    float s[TILES][4] = {};
    GroupEnd end;
    const Head head(from, (threadIdx.x & 31) >> 2);
    _Pragma("unroll 1") for (int q = 0; q < count; q++) {
      Record w;
      if (q % COLUMN_BLOCKS == 0) wait_columns();
      w.load(head, from, q, threadIdx.x & 31, offset);
      multiply_block(s, w, q);
      await_steps<0>();
      hold(w.codes, offset);
      if (q % COLUMN_BLOCKS == COLUMN_BLOCKS - 1 && q + 1 < count) columns.give_back<false>();
    }
    end.load(from);
    weights.give_back<true>();
    end_group(acc, s, end, []() {});
  }
};
