// Keys, values, keys, ... of the units of attention_wide on their way to the products, as f16: f16 pages as they are, by one thread; q8_0 pages through
// a ring of their own, from which a warpgroup widens them.
#pragma once
#include "pages.cuh"
#include "pipe.cuh"
#include "switches.cuh"

#define TILE_BYTES (PAGE_TOKENS * HEAD_DIM * 2)
#define HALF_BYTES head_page_bytes(HEAD_DIM)
#define RAW_STAGES 4
#define FEED_THREADS 128
#define WIDENED 4  // matrices that a warp widens at once, two of them by one load

typedef Pipe<STAGES, TILE_BYTES> TilePipe;

struct Unit {
  int row, rows, blocks, split, splits, slot, kv_head, first_seen;

  METHOD int first_group() const { return WINDOW ? first_seen / FOLDED_BLOCKS : 0; }

  METHOD int first() const { return WINDOW ? max(FOLDED_BLOCKS * (first_group() + split), first_seen) : FOLDED_BLOCKS * split; }
  // Where a window hides all that it would take.
  METHOD bool is_empty() const { return WINDOW && first() >= blocks; }
  METHOD int after(int block) const { return block + 1 + (block % FOLDED_BLOCKS == FOLDED_BLOCKS - 1 ? FOLDED_BLOCKS * (splits - 1) : 0); }
  METHOD bool closes_group(int block) const { return block % FOLDED_BLOCKS == FOLDED_BLOCKS - 1 || block == blocks - 1; }
};

// What every unit of a launch shares.
struct Geometry {
  const int* step;
  int kv_heads, group, items;
  Switches switches;

  METHOD Unit at(int item) const {
    const int* words = step + step[UNITS_AT] + (step[UNITS] + item / kv_heads) * UNIT_WORDS;
    const int kv_head = item % kv_heads, first_seen = WINDOW ? switches.first_block(row_array(step, POSITIONS)[words[WIDE_ROW]]) : 0;
    return {words[WIDE_ROW], words[WIDE_ROWS], words[WIDE_BLOCKS], words[WIDE_SPLIT], words[WIDE_SPLITS], words[WIDE_TILE] * kv_heads + kv_head, kv_head,
            first_seen};
  }
};

#if KV_BITS == 16
// A unit's page numbers, on their way while older ones are used: who waits for a load in the loop delays the copies.
struct PageNumbers {
  u32 ring;
  int asked, taken;

  METHOD void ask(const int* page) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(ring + (asked++ & 3) * 4), "l"(page) : "memory");
    commit_copies();
  }
  METHOD int take() {
    int page;
    wait_copies<2>();
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(page) : "r"(ring + (taken++ & 3) * 4) : "memory");
    return page;
  }
};

// By one thread.
DEVICE void bring_pages(TilePipe tiles, const Geometry& geometry, const u8* layer) {
  __shared__ int ring[4];
  PageNumbers numbers = {shared_address(ring), 0, 0};
  for (int item = blockIdx.x; item < geometry.items; item += gridDim.x) {
    const Unit unit = geometry.at(item);
    const int *pages = page_table(geometry.step, unit.row), last = unit.blocks - 1;
    int asking = unit.first();
    for (int i = 0; i < 3; i++) numbers.ask(pages + min(asking, last)), asking = unit.after(asking);
    for (int block = unit.first(); block <= last; block = unit.after(block)) {
      const u8* halves = layer + ((size_t)numbers.take() * geometry.kv_heads + unit.kv_head) * 2 * HALF_BYTES;
      numbers.ask(pages + min(asking, last)), asking = unit.after(asking);
      for (int half = 0; half < 2; half++) {
        tiles.claim(HALF_BYTES);
        copy_run(tiles.slot(), halves + half * HALF_BYTES, HALF_BYTES, tiles.filled(), STAYS);
        tiles.pass();
      }
    }
    numbers.taken = numbers.asked;
    wait_copies<0>();
  }
}
#else
// The halves of every block of every unit of this thread block, in order.
struct Halves {
  const Geometry& geometry;
  const u8* layer;
  const int* pages;
  Unit unit;
  int item, block, page, following, half;

  METHOD Halves(const Geometry& geometry, const u8* layer) : geometry(geometry), layer(layer), item(blockIdx.x), half(0) { open(); }
  METHOD bool are_left() const { return item < geometry.items; }
  METHOD void open() {
    if (WINDOW) while (are_left() && geometry.at(item).is_empty()) item += gridDim.x;
    if (!are_left()) return;
    unit = geometry.at(item);
    pages = page_table(geometry.step, unit.row);
    block = unit.first();
    page = pages[block];
  }
  METHOD const u8* next() {
    const u8* at = layer + (((size_t)page * geometry.kv_heads + unit.kv_head) * 2 + half) * HALF_BYTES;
    half ^= 1;
    if (half) {
      following = pages[min(unit.after(block), unit.blocks - 1)];
      return at;
    }
    block = unit.after(block);
    page = following;
    if (block >= unit.blocks) item += gridDim.x, open();
    return at;
  }
};

typedef Pipe<RAW_STAGES, HALF_BYTES> RawPipe;

DEVICE void store_matrices(u32 at, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

DEVICE void store_transposed(u32 at, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// A warp's quarter of a half, several matrices at once: a store holds back the loads behind it.
DEVICE void widen_half(u32 tile, const u8* raw, int is_values) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
  u32 a[WIDENED / 2][2][4];
  if (is_values) {
    for (int dims = warp; dims < HEAD_DIM / 16; dims += 4)
      UNROLL for (int first = 0; first < PAGE_TOKENS / 16; first += WIDENED) {
        UNROLL for (int i = 0; i < WIDENED; i += 2) widen_values(a[i / 2], raw, HEAD_DIM, dims, first + i);
        UNROLL for (int i = 0; i < WIDENED; i++)
          store_transposed(tile + chunk_at(HEAD_DIM, (first + i) * 16 + (lane & 7) + (lane >> 4) * 8, 2 * dims + (lane >> 3 & 1)), a[i / 2][i % 2]);
      }
    return;
  }
  UNROLL for (int first = 0; first < HEAD_DIM / 16; first += WIDENED) {
    UNROLL for (int i = 0; i < WIDENED; i += 2) widen_keys(a[i / 2], raw, HEAD_DIM, warp, first + i);
    UNROLL for (int i = 0; i < WIDENED; i++) store_matrices(tile + chunk_at(HEAD_DIM, warp * 16 + (lane & 15), 2 * (first + i) + (lane >> 4)), a[i / 2][i % 2]);
  }
}

DEVICE void ask_half(RawPipe& raw, Halves& halves) {
  if (threadIdx.x % FEED_THREADS == 0) {
    arrive_expecting(raw.filled(), HALF_BYTES);
    copy_run(raw.slot(), halves.next(), HALF_BYTES, raw.filled(), STAYS);
  } else {
    halves.next();
  }
  raw.pass();
}

// By a whole warpgroup: a raw half is asked for as soon as all have read the one whose slot it takes.
DEVICE void bring_pages(TilePipe tiles, Halves halves, RawPipe raw, const u8* raw_slots) {
  RawPipe asking = raw;
  int asked = 0;
  while (asked < RAW_STAGES - 1 && halves.are_left()) ask_half(asking, halves), asked++;
  for (int half = 0; half < asked; half++) {
    raw.wait();
    asm volatile("bar.sync 3, 128;" ::: "memory");
    if (halves.are_left()) ask_half(asking, halves), asked++;
    wait_barrier(tiles.filled() + 8, tiles.phase ^ 1);
    widen_half(tiles.slot(), raw_slots + raw.stage * HALF_BYTES, half & 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if ((threadIdx.x & 31) == 0) arrive(tiles.filled());
    tiles.pass(), raw.pass();
  }
}
#endif
