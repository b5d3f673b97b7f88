// The matrices of one launch of a product, and the units of UNIT_OUTPUTS outputs x 8 TILES rows that its blocks take in turn.
#pragma once
#include "common.cuh"

#define UNIT_COLUMNS (8 * TILES)
#ifndef PLACE_OUTPUTS
#define PLACE_OUTPUTS UNIT_OUTPUTS  // what a part's outputs are rounded up to
#endif

// One matrix of the product. Matrices of one kind that take the same activation share a launch.
struct Part {
  const u8* weights;
  const float* bias;
  float* out;
  i64 out_stride;
  int outputs, zero;
};

struct Parts {
  Part part[3];
  int count;
};

// Where a unit lies: one part's outputs from 16 tile on, the batch's rows from 8 row_tile on.
struct Unit {
  int part, tile, row_tile;
};

struct Product {
  int blocks, rows;
  int starts[4];  // of each part's units of outputs, and the end of all

  METHOD Product(const Parts& parts, int blocks, int rows) : blocks(blocks), rows(rows) {
    starts[0] = 0;
    UNROLL for (int i = 0; i < 3; i++) {
      const int outputs = i < parts.count ? parts.part[i].outputs : 0;
      starts[i + 1] = starts[i] + (outputs + PLACE_OUTPUTS - 1) / PLACE_OUTPUTS * (PLACE_OUTPUTS / UNIT_OUTPUTS);
    }
  }
  METHOD int column_groups() const { return (rows + UNIT_COLUMNS - 1) / UNIT_COLUMNS; }
  METHOD int units() const { return starts[3] * column_groups(); }
  METHOD Unit at(int unit) const {
    const int columns = column_groups(), place = unit / columns, part = (place >= starts[1]) + (place >= starts[2]);
    return {part, (place - (part == 2 ? starts[2] : part == 1 ? starts[1] : 0)) * (UNIT_OUTPUTS / 16), unit % columns * TILES};
  }
};

// One output of one row of the batch: what a product ends with.
DEVICE void put_output(const Part& part, i64 row, int output, float value) {
  part.out[row * part.out_stride + output] = part.bias == nullptr ? value : __fadd_rn(value, part.bias[output]);
}
