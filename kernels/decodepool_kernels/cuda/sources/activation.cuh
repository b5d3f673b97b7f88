// A row of activations ready for the tensor cores. PLANES 2: x 2^e = hi + lo in f16 under one power of two a (row, slice), which lifts the
// slice's largest magnitude to [2^13, 2^14). PLANES 3: x = hi + mid + lo in bf16, which needs no scale.
//
// Groups of 4 blocks of 32 belong to slices in turn: group i to slice i mod 8.
// Layout: [block of 32][8 rows][plane][lane][8 values], lane = 4 (row mod 8) + t holding k = 4t..4t+3 and 16+4t..16+4t+3: B fragments whose
// hardware index 2t+e is k = 4t+e, and 8+2t+e is k = 4t+2+e. Where there is room for fewer than 8 rows, a plane has 4 lanes a row. With CORES, for wgmma: [block of 32][8 rows][plane][row][4 chunks of
// 8 values], a chunk 8 hardware indices of a half of k; chunks are exchanged by row: chunk c stands at c ^ (row / 2 mod 4). Then 1 / 2^e as
// [slice][row], then sums of each 16 values as [block][row][2].
#pragma once
#include "common.cuh"

#define SLICES 8
#define GROUP_BLOCKS 4
#define SLICE_STRIDE 1024
#define FRAGMENT_BYTES 512
#define ROW_BYTES 64  // of a block's plane

struct Activation {
  u8* planes;
  float* scales;
  float* sums;
  int columns;  // rows that there is room for: 2, 4, or a multiple of 8

  METHOD int plane_bytes() const { return min(columns, 8) * ROW_BYTES; }
};

DEVICE Activation activation_at(u8* where, int blocks, int columns) {
  float* scales = (float*)(where + (size_t)blocks * columns * 64 * PLANES);
  return {where, scales, scales + SLICES * columns, columns};
}

DEVICE u8* fragments_at(const Activation& a, int block, int row_tile) {
  return a.planes + ((size_t)block * a.columns + row_tile * 8) * (PLANES * ROW_BYTES);
}
