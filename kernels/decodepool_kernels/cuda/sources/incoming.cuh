// What attention's computing warps work on: units one after the other, and the halves of their blocks' pages. With a copy engine (sm_90) the first
// thread of one warp more brings them; before, the four of the only team copy for themselves, piece by piece. Queries are read where they lie: copies of
// them would stand behind those of pages.
#pragma once
#include "pages.cuh"
#include "pipe.cuh"
#include "ring.cuh"
#include "switches.cuh"

#define HALF_BYTES head_page_bytes(HEAD_DIM)
#define AHEAD (STAGES * HALF_BYTES < MOST_AHEAD_BYTES ? STAGES : MOST_AHEAD_BYTES / HALF_BYTES)
#define MOST_AHEAD_BYTES (96 << 10)  // of pages asked for before the kernels ahead have ended: more stand in the way of the queries
#define COLUMNS 8  // rows of one session x query heads of one kv head
#if !HAS_COPY_ENGINE
#undef TEAMS
#define TEAMS 1  // a ring that computing warps fill has every one of them meet
#endif
#define TEAM_THREADS 128
#define TEAM_WARPS (TEAM_THREADS / 32)
#define WORKERS (TEAMS * TEAM_THREADS)
#define ATTENTION_THREADS (WORKERS + (HAS_COPY_ENGINE ? 32 : 0))
#define QUERY_STRIDE (HEAD_DIM + 16)  // lanes that read columns side by side meet different banks

struct Unit {
  int row, rows, block, blocks, chunk, fresh, kv_head, first_head, heads;
};

// What every unit of a launch shares.
struct Geometry {
  const float* q;
  i64 q_stride;
  const u8* layer;
  const int* step;
  int kv_heads, group, head_tiles, items, longest;
  const Switches& switches;

  // A unit without the blocks that none of its rows sees; none may be left.
  METHOD Unit at(int item) const {
    const int* words = step + step[UNITS_AT] + item / (kv_heads * head_tiles) * UNIT_WORDS;
    const int kv_head = item / head_tiles % kv_heads, first = item % head_tiles * COLUMNS;
    Unit unit = {words[UNIT_ROW], words[UNIT_ROWS], words[UNIT_BLOCK], words[UNIT_BLOCKS], words[UNIT_CHUNK], words[UNIT_FRESH],
                 kv_head, kv_head * group + first, min(COLUMNS, group - first)};
    if (WINDOW) {
      const int unseen = min(max(switches.first_block(row_array(step, POSITIONS)[unit.row]) - unit.block, 0), unit.blocks);
      unit.block += unseen, unit.blocks -= unseen;
    }
    return unit;
  }
  // The item of a thread block in a round; there is none from `items` on. They lie longest first: where a round ends in shorter ones, the next one
  // begins with the blocks that have those.
  METHOD int dealt(int round) const {
    const int blocks = gridDim.x, turned = blockIdx.x - min(max(longest - (round - 1) * blocks, 0), blocks);
    return round * blocks + turned + (turned < 0 ? blocks : 0);
  }
  METHOD const float* query(const Unit& unit, int column) const {
    return q + (unit.row + column / unit.heads) * q_stride + (unit.first_head + column % unit.heads) * HEAD_DIM;
  }
};

#define DEALT 2  // units that a thread block has by its number; all of them unless CLAIMED

// How often units beyond the dealt ones were claimed in a launch: a block that memory serves faster takes more of them. 0 between launches.
static __device__ u32 claims;

// The halves of the blocks of this thread block's units, in order.
struct Feed {
  int item, round, claimed, half, halves, kv_head, page, old_halves;
  const int* pages;

  METHOD Feed(const Geometry& g) : round(-1), claimed(g.items) { move_on(g); }

  // To the next unit that has blocks; beyond the dealt ones there is none before `begin_claims`.
  METHOD void move_on(const Geometry& g) {
    half = halves = old_halves = 0;
    do {
      if (++round < DEALT || !CLAIMED) item = g.dealt(round);
      else item = claimed, claimed = item < g.items ? claim(g) : item;
    } while (WINDOW && item < g.items && g.at(item).blocks == 0);
    if (item >= g.items) return;
    const Unit unit = g.at(item);
    halves = 2 * unit.blocks;
    old_halves = 2 * (unit.fresh - unit.block);
    kv_head = unit.kv_head;
    pages = page_table(g.step, unit.row) + unit.block;
    page = pages[0];
  }
  // Every block claims until it finds nothing left, and the last claim of all sets the count back: so none before the launch ahead has ended.
  METHOD int claim(const Geometry& g) const { return DEALT * gridDim.x + atomicInc(&claims, g.items - (DEALT - 1) * gridDim.x - 1); }

  METHOD void begin_claims(const Geometry& g) {
    if (!CLAIMED || g.items <= DEALT * gridDim.x) return;
    claimed = claim(g);
    if (round >= DEALT) move_on(g);
  }
  METHOD bool is_left() const { return half < halves; }

  // Whether the next half holds nothing that this step writes.
  METHOD bool is_old() const { return half < old_halves; }

  METHOD const u8* next(const Geometry& g) {
    const u8* at = g.layer + (((size_t)page * g.kv_heads + kv_head) * 2 + (half & 1)) * HALF_BYTES;
    if (++half == halves) move_on(g);
    else if (!(half & 1)) page = pages[half >> 1];
    return at;
  }
};

// The units of a block without claims, as its readers meet them.
struct Dealt {
  int round;
  METHOD Dealt() : round(0) {}
  METHOD bool next(const Geometry& g, Unit& unit) {
    do {
      const int item = g.dealt(round++);
      if (item >= g.items) return false;
      unit = g.at(item);
    } while (WINDOW && unit.blocks == 0);
    return true;
  }
};

// The team of a computing thread, and its warp's number in there.
DEVICE int own_team() { return TEAMS == 1 ? 0 : threadIdx.x / TEAM_THREADS; }
DEVICE int own_warp() { return threadIdx.x / 32 % TEAM_WARPS; }

DEVICE void meet_team() { asm volatile("bar.sync %0, 128;" ::"r"(1 + own_team()) : "memory"); }
DEVICE void meet_workers() { asm volatile("bar.sync %0, %1;" ::"n"(TEAMS == 1 ? 1 : 1 + TEAMS), "n"(WORKERS) : "memory"); }

#if HAS_COPY_ENGINE
struct Shared {
  __align__(16) float queries[2][COLUMNS][QUERY_STRIDE];
  Unit units[2];
  u64 unit_barriers[4], half_barriers[2 * STAGES];
};

typedef Pipe<2, sizeof(Unit)> UnitPipe;
typedef Pipe<STAGES, HALF_BYTES> HalfPipe;

struct Incoming {
  const Geometry& g;
  Shared& shared;
  UnitPipe units;  // told to the workers where some are claimed: else they know theirs
  HalfPipe halves;
  Dealt dealt;
  int round, halves_before;  // units and halves that lie before the unit at hand

  METHOD Incoming(const Geometry& g, const u8* slots, Shared& shared)
      : g(g), shared(shared), units((const u8*)shared.units, shared.unit_barriers), halves(slots, shared.half_barriers), round(0), halves_before(0) {
    if (threadIdx.x == 0) units.set(WORKERS), halves.set(TEAM_THREADS);
    __syncthreads();
  }

  // By one thread: pages that this step does not write are on their way before the kernels ahead have ended.
  METHOD void bring() {
    Feed feed(g);
    for (int ahead = 0; ahead < AHEAD && feed.is_old(); ahead++) ask_half(feed);
    for (int round = 0; CLAIMED && round < DEALT && round <= feed.round; round++) tell(g.dealt(round));
    await_previous();
    const bool is_beyond = feed.round >= DEALT;
    feed.begin_claims(g);
    if (CLAIMED && is_beyond) tell(feed.item);
    while (feed.is_left()) {
      ask_half(feed);
      if (CLAIMED && feed.half == 0) tell(feed.item);
    }
    if (CLAIMED) tell(Unit{});
  }
  METHOD void ask_half(Feed& feed) {
    halves.claim(HALF_BYTES);
    copy_run(halves.slot(), feed.next(g), HALF_BYTES, halves.filled(), GOES_FIRST);
    halves.pass();
  }
  METHOD void tell(int item) {
    if (item >= g.items) return;
    const Unit unit = g.at(item);
    if (!WINDOW || unit.blocks > 0) tell(unit);
  }
  // One without blocks is the last.
  METHOD void tell(const Unit& unit) {
    wait_barrier(units.filled() + 8, units.phase ^ 1);
    shared.units[units.stage] = unit;
    arrive(units.filled());
    units.pass();
  }

  METHOD bool open(Unit& unit) {
    if (!CLAIMED) return dealt.next(g, unit);
    units.wait();
    unit = shared.units[units.stage];
    units.give_back_each<false>();
    return unit.blocks > 0;
  }
  // Where a column's queries lie split. Who is a unit ahead of others writes elsewhere.
  METHOD float* split_query(int column) const { return shared.queries[round & 1][column]; }
  METHOD void end(const Unit& unit) { round++, halves_before += 2 * unit.blocks; }

  // To a block of the unit: those between are other teams'.
  METHOD void turn_to(int block) {
    if (TEAMS > 1) halves.go_to(halves_before + 2 * block);
  }
  METHOD u32 wait() {
    halves.wait();
    return halves.stage * HALF_BYTES;
  }
  METHOD void done() { halves.give_back_each<true>(); }
};
#else
struct Shared {
  __align__(16) float queries[COLUMNS][QUERY_STRIDE];
  u64 half_barriers[1];
};

struct Incoming {
  const Geometry& g;
  Shared& shared;
  Ring<WORKERS, STAGES, HALF_BYTES> ring;
  Feed feed;
  Dealt dealt;

  METHOD Incoming(const Geometry& g, const u8* slots, Shared& shared) : g(g), shared(shared), ring(slots, shared.half_barriers, threadIdx.x), feed(g) {
    for (int stage = 0; stage < STAGES - 1; stage++) ask_half();
  }
  METHOD void ask_half() {
    if (feed.is_left()) ring.copy(0, feed.next(g), HALF_BYTES, GOES_FIRST);
    ring.filled();
  }
  METHOD bool open(Unit& unit) { return dealt.next(g, unit); }
  METHOD float* split_query(int column) const { return shared.queries[column]; }
  METHOD void end(const Unit&) {}
  METHOD void turn_to(int) {}
  METHOD u32 wait() {
    ring.wait();
    __syncthreads();
    ask_half();
    return ring.take();
  }
  METHOD void done() {}
};
#endif
