// A row of activations ready for the tensor cores. PLANES 2: x 2^e = hi + lo in f16 under one power of two a (row, slice), which lifts the
// slice's largest magnitude to [2^13, 2^14). PLANES 3: x = hi + mid + lo in bf16, which needs no scale.
//
// Groups of 4 blocks of 32 belong to slices in turn: group i to slice i mod 8.
// Layout: [block of 32][8 rows][plane][lane][8 values], lane = 4 (row mod 8) + t holding k = 4t..4t+3 and 16+4t..16+4t+3: B fragments whose
// hardware index 2t+e is k = 4t+e, and 8+2t+e is k = 4t+2+e. Where there is room for 2 or 4 rows alone, a plane has no more lanes than
// theirs. With CORES, for wgmma: [block of 32][8 rows][plane][row][4 chunks of 8 values], a chunk 8 hardware indices of a half of k; chunks are
// exchanged by row: chunk c stands at c ^ (row / 2 mod 4).
//
// Then 1 / 2^e as [slice][row], then sums of each 16 values. SUMS 1: f32 [block][row][2]. SUMS 2: 2^-4 times each = hi + lo in f16, [group][8 rows]
// [hi, lo][row][8 halves of blocks], as a step of the tensor cores takes them, 8 rows even where there is room for fewer; 0 past the last block.
// SUMS 0: none is read.
#pragma once
#include "common.cuh"

#define SLICES 8
#define GROUP_BLOCKS 4
#define SLICE_STRIDE 1024
#define FRAGMENT_BYTES 512
#define ROW_BYTES 64         // of a block's plane
#define GROUP_SUM_BYTES 256  // of 8 rows

struct Activation {
  u8* planes;
  float* scales;
  u8* sums;
  int columns;  // rows that there is room for: 2, 4 or a multiple of 8

  METHOD int plane_bytes() const { return min(columns, 8) * ROW_BYTES; }
  METHOD int row_tiles() const { return (columns + 7) / 8; }
};

DEVICE Activation activation_at(u8* where, int blocks, int columns) {
  float* scales = (float*)(where + (size_t)blocks * columns * 64 * PLANES);
  return {where, scales, (u8*)(scales + SLICES * columns), columns};
}

DEVICE u8* fragments_at(const Activation& a, int block, int row_tile) {
  return a.planes + ((size_t)block * a.columns + row_tile * 8) * (PLANES * ROW_BYTES);
}

// Of SUMS 1: a row's, of both halves of a block; those of the next rows are behind them.
DEVICE float* block_sums_at(const Activation& a, int block, int row) { return (float*)a.sums + ((size_t)block * a.columns + row) * 2; }

// Of SUMS 2: those of 8 rows; of the next 8 are behind them.
DEVICE u8* group_sums_at(const Activation& a, int group, int row_tile) { return a.sums + ((size_t)group * a.row_tiles() + row_tile) * GROUP_SUM_BYTES; }
