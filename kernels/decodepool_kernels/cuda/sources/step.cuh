// What a step brings to the device: one buffer of int32, copied whole before the first kernel. The host's twin is inputs.py.
#pragma once
#include "common.cuh"

#define PAGE_TOKENS 64
#define MAX_ROWS 512

enum { ROWS, WANTED, UNITS, UNITS_AT, TABLES_AT, TABLE_WIDTH, WIDE_UNITS, HEADER_WORDS = 8 };
enum { TOKENS, POSITIONS, ROW_TABLES, PARTIALS, CHUNK_BLOCKS, WANTED_ROWS, WANTED_SLOTS };
enum { UNIT_ROW, UNIT_ROWS, UNIT_BLOCK, UNIT_BLOCKS, UNIT_CHUNK, UNIT_FRESH, UNIT_WORDS = 8 };
enum { WIDE_ROW, WIDE_ROWS, WIDE_BLOCKS, WIDE_SPLIT, WIDE_SPLITS, WIDE_TILE };  // the wide units follow the others

// An array with one value a row.
DEVICE const int* row_array(const int* step, int which) { return step + HEADER_WORDS + which * MAX_ROWS; }

// The page table of a row's session.
DEVICE const int* page_table(const int* step, int row) {
  return step + step[TABLES_AT] + row_array(step, ROW_TABLES)[row] * step[TABLE_WIDTH];
}
