// What attention's workers work on where every row is a run of its own: they turn its queries, and its key, on the way from where their product left
// them, and keep key and value in the row's newest page, in place of rope_append and with its bits. No kernel ahead writes to pages then, so that all of
// them may be on their way before those have ended.
#pragma once
#include "append.cuh"

// A unit, with its row's newest token and the page of that.
struct Opened {
  Unit unit;
  int token, page;
};

struct Shared {
  u64 half_barriers[2 * STAGES];
  float queries[COLUMNS][QUERY_STRIDE];
  float key[HEAD_DIM], value[HEAD_DIM];
  Opened opened;
};

typedef Pipe<STAGES, HALF_BYTES> HalfPipe;

// Two dims of a head on their way, and what they are turned by.
struct Turned {
  Pair at;
  float2 values, turn;
  bool is_turned;

  METHOD void load(const float* head, const float2* turns, int i, const Turning& t) {
    at = pair_of(i, t.half, t.interleaved), is_turned = i < t.half;
    values = make_float2(head[at.a], head[at.b]);
    if (is_turned) turn = turns[i];
  }
  METHOD void put(float* head) const {
    const float2 turned = is_turned ? rotated(values.x, values.y, turn) : values;
    head[at.a] = turned.x, head[at.b] = turned.y;
  }
};

struct Incoming {
  const Geometry& g;
  Shared& shared;
  HalfPipe halves;
  int item;

  METHOD Incoming(const Geometry& g, const u8* slots, Shared& shared) : g(g), shared(shared), halves(slots, shared.half_barriers), item(blockIdx.x) {
    if (threadIdx.x == 0) {
      halves.set(WORKERS / 32);
      if (item < g.items) look(g.at(item));
    }
    __syncthreads();
  }
  METHOD void look(const Unit& unit) { shared.opened = {unit, row_array(g.step, POSITIONS)[unit.row] % PAGE_TOKENS, page_table(g.step, unit.row)[unit.fresh]}; }

  // By one thread.
  METHOD void bring() {
    Feed feed(g);
    for (int ahead = 0; feed.is_left() && ahead < STAGES; ahead++) ask_half(feed);
    await_previous();
    while (feed.is_left()) ask_half(feed);
  }
  METHOD void ask_half(Feed& feed) {
    halves.claim(HALF_BYTES);
    copy_run(halves.slot(), feed.next(g), HALF_BYTES, halves.filled(), GOES_FIRST);
    halves.pass();
  }

  METHOD bool open(Unit& unit) {
    if (item >= g.items) return false;
    const bool is_first = item == blockIdx.x;
    unit = is_first ? shared.opened.unit : g.at(item);
    if (!is_first && threadIdx.x == 0) look(unit);
    item += gridDim.x;
    if (!WINDOW || unit.blocks > 0) turn(unit);
    return true;
  }
  METHOD const float* query(const Unit&, int column) const { return shared.queries[column]; }
  METHOD void take_queries() {}

  // Loads are on their way together before the first is waited for.
  METHOD void turn(const Unit& unit) {
    constexpr int pairs = HEAD_DIM / 2, together = 2;
    const bool has_key = unit.has_newest() && threadIdx.x < pairs;
    const float2* turns = g.turning.table + unit.row * g.turning.half;
    const i64 from = unit.row * g.turning.stride + unit.kv_head * HEAD_DIM;
    Turned key;
    float2 value;
    if (has_key) key.load(g.turning.k + from, turns, threadIdx.x, g.turning), value = *(const float2*)(g.turning.v + from + 2 * threadIdx.x);
    _Pragma("unroll 1") for (int first = threadIdx.x; first < unit.heads * pairs; first += together * WORKERS) {
      Turned queries[together];
      UNROLL for (int n = 0; n < together; n++) {
        const int i = first + n * WORKERS;
        if (i < unit.heads * pairs) queries[n].load(g.query(unit, i / pairs), turns, i % pairs, g.turning);
      }
      UNROLL for (int n = 0; n < together; n++) {
        const int i = first + n * WORKERS;
        if (i < unit.heads * pairs) queries[n].put(shared.queries[i / pairs]);
      }
    }
    if (has_key) key.put(shared.key), *(float2*)(shared.value + 2 * threadIdx.x) = value;
    meet_workers();
  }

  METHOD void put(u8* keys, u8* values) const {
    for (int dim = APPENDED_DIMS * threadIdx.x; dim < HEAD_DIM; dim += APPENDED_DIMS * WORKERS) {
#if KV_BITS == 8
      Appended(shared.key[dim], shared.value[dim]).put(keys, values, HEAD_DIM, shared.opened.token, dim);
#else
      Appended(*(const float4*)(shared.key + dim), *(const float4*)(shared.value + dim)).put(keys, values, HEAD_DIM, shared.opened.token, dim);
#endif
    }
  }

  // Key and value of the newest token, to the next block's halves as they came, and to its page.
  METHOD void append(const Unit& unit, u8* slots) {
    HalfPipe keys = halves, values = halves;
    values.pass();
    keys.wait(), values.wait();
    put(slots + keys.stage * HALF_BYTES, slots + values.stage * HALF_BYTES);
    meet_workers();
    u8* page = head_page(g.layer, shared.opened.page, g.kv_heads, unit.kv_head, HEAD_DIM);
    put(page, page + HALF_BYTES);
  }
  METHOD u32 wait() {
    halves.wait();
    return halves.stage * HALF_BYTES;
  }
  METHOD void done() { halves.give_back<true>(); }
};
