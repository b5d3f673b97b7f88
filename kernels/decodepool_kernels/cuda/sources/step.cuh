// What a step brings to the device: one buffer of int32, which the first kernel brings (bring.cu). The host's twin is inputs.py.
#pragma once
#include "common.cuh"

#define PAGE_TOKENS 64
#define MAX_ROWS 512

enum {
  ROWS, WANTED, UNITS, UNITS_AT, TABLES_AT, TABLE_WIDTH, WIDE_UNITS, NUMBER, WORDS_END, CHANGED_AT, CHANGED_END, LONGEST_UNITS, HEADER_WORDS = 16
};
enum { TOKENS, POSITIONS, ROW_TABLES, PARTIALS, CHUNK_BLOCKS, WANTED_ROWS, WANTED_SLOTS };
enum { UNIT_ROW, UNIT_ROWS, UNIT_BLOCK, UNIT_BLOCKS, UNIT_CHUNK, UNIT_FRESH, UNIT_WORDS = 8 };
enum { WIDE_ROW, WIDE_ROWS, WIDE_BLOCKS, WIDE_SPLIT, WIDE_SPLITS, WIDE_TILE };  // the wide units follow the others

// What a step answers of a row that is wanted: its largest logit and the id of that, and the token drawn where one was. Answers lie in the host's memory.
struct __align__(16) Answer {
  int best;
  float logit;
  int drawn;
};

// Of the host's memory a step has a half: the other is of the step before, which is read, or of the next, which is written.
DEVICE int turn_of(const int* step) { return step[NUMBER] & 1; }

DEVICE Answer* answers_of(Answer* answers, const int* step) { return answers + turn_of(step) * MAX_ROWS; }

// An array with one value a row.
DEVICE const int* row_array(const int* step, int which) { return step + HEADER_WORDS + which * MAX_ROWS; }

// A row's token. One below 0 stands for what slot ~token drew last, in a step that the host had not read when it asked for this one.
DEVICE int row_token(const int* step, const int* last_tokens, int row) {
  const int token = row_array(step, TOKENS)[row];
  return token < 0 ? last_tokens[~token] : token;
}

// The page table of a row's session.
DEVICE const int* page_table(const int* step, int row) {
  return step + step[TABLES_AT] + row_array(step, ROW_TABLES)[row] * step[TABLE_WIDTH];
}
