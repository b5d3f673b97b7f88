// Attention over pages. A block = a page = 64 tokens at absolute positions. For one query row and block, in units of log2 e:
//
//   s = chain of k16 tensor-core steps over dims: q_hi k, q_lo k, next step       (q scale log2(e) = q_hi + q_lo in f16)
//   m = largest s; p = 2^(s - m) = p_hi + p_lo; l, O = chains over tokens: p_hi (1, v), p_lo (1, v), next step
//
// 8 blocks fold into a group, groups into the row, ascending from nothing: a function of the row's position and pages alone.
// A thread block takes a unit: up to 8 columns (rows of one session x query heads of one kv head) against a run of blocks, and leaves either
// the finished rows or the state of one chunk (a block, or a group), to be folded (partials.cuh). Tokens and dims are the rows of the products.
// A team of 4 warps takes a block; of two teams (TEAMS) the first takes the even ones of a unit and folds what both have.
#include "incoming.cuh"

#define STEPS (HEAD_DIM / 16)
#define WARP_TILES ((HEAD_DIM + 63) / 64)
#define STEPS_AT_ONCE (KV_BITS == 8 ? 2 : 1)  // whose operands one load brings
#define LINE_BYTES 128
#define OWN_COLUMNS (COLUMNS * 32 / WORKERS)  // whose queries a warp splits, so many times 8 steps of each
#define STEPS_LOADED ((STEPS + 7) / 8)
#define STATE_WORDS (1 + WARP_TILES)  // of 16 bytes
static_assert(TEAMS == 1 || (TEAMS == 2 && STAGES % 4 == 0), "a slot of the ring is one team's within a unit, and all workers meet between two");

#if KV_BITS == 16
DEVICE void load_matrices(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

DEVICE void load_transposed(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
#endif

// 16 tokens' keys, 16 dims from 16 step on; and 16 dims of values, 16 tokens: the first operands of STEPS_AT_ONCE products.
DEVICE void load_keys(u32 (&k)[STEPS_AT_ONCE][4], const u8* half, int tokens, int step) {
#if KV_BITS == 8
  widen_keys(k, half, HEAD_DIM, tokens, step);
#else
  const int lane = threadIdx.x & 31;
  load_matrices(k[0], shared_address(half) + chunk_at(HEAD_DIM, tokens * 16 + (lane & 15), 2 * step + (lane >> 4)));
#endif
}

DEVICE void load_values(u32 (&v)[STEPS_AT_ONCE][4], const u8* half, int dims, int step) {
#if KV_BITS == 8
  widen_values(v, half, HEAD_DIM, dims, step);
#else
  const int lane = threadIdx.x & 31;
  load_transposed(v[0], shared_address(half) + chunk_at(HEAD_DIM, step * 16 + (lane & 7) + (lane >> 4) * 8, 2 * dims + (lane >> 3 & 1)));
#endif
}

struct __align__(16) State {
  float m[2], l[2], o[WARP_TILES][4];
  METHOD void clear() {
    UNROLL for (int e = 0; e < 2; e++) m[e] = MINUS_INFINITY, l[e] = 0.f;
    UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = 0; i < 4; i++) o[n][i] = 0.f;
  }
  METHOD void fold(const State& other) {
    Weights w[2];
    UNROLL for (int e = 0; e < 2; e++) w[e] = absorb(m[e], other.m[e]), l[e] = folded(l[e], other.l[e], w[e]);
    UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = 0; i < 4; i++) o[n][i] = folded(o[n][i], other.o[n][i], w[i & 1]);
  }
};

// What the warps show each other of a block: largest scores, and weights as the second operand of 16 tokens has them, [high, high, low, low] a lane.
struct Meeting {
  __align__(16) float largest[COLUMNS][4];
  uint4 weights[PAGE_TOKENS / 16][32];
};

// Where the weights of the two tokens 2 pair, ... of a column stand: exchanged by column, so that lanes write and read to different banks.
DEVICE int weights_at(int column, int pair) { return (4 * column + pair) ^ (column & 6); }

// Two columns of a lane: rows of the step, and query heads.
struct Columns {
  int rows[2], heads[2], seen[2], parts[2];

  METHOD Columns(const Unit& unit, const int* step) {
    UNROLL for (int e = 0; e < 2; e++) {
      const int column = 2 * (threadIdx.x & 3) + e, row = unit.row + column / unit.heads;
      const bool is_live = column / unit.heads < unit.rows;
      rows[e] = row, heads[e] = unit.first_head + column % unit.heads;
      seen[e] = is_live ? row_array(step, POSITIONS)[row] : -1;
      parts[e] = is_live && unit.chunk >= 0 ? row_array(step, PARTIALS)[row] + unit.chunk : 0;
      if (is_live && unit.chunk >= 0 && unit.chunk * row_array(step, CHUNK_BLOCKS)[row] * PAGE_TOKENS > seen[e]) parts[e] = -1;
    }
  }
};

// A unit's queries as the second operand of a step has them, [high, high, low, low] a lane.
DEVICE void split_queries(const Incoming& incoming, const Unit& unit, float scale) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float2 v[OWN_COLUMNS][STEPS_LOADED][2];
  UNROLL for (int i = 0; i < OWN_COLUMNS; i++)
    UNROLL for (int j = 0; j < STEPS_LOADED; j++) {
      const int column = warp + i * (WORKERS / 32), step = 8 * j + (lane >> 2);
      const float* from = incoming.g.query(unit, column) + 16 * step + 2 * (lane & 3);
      const bool is_live = column < unit.rows * unit.heads && step < STEPS;
      UNROLL for (int half = 0; half < 2; half++) v[i][j][half] = is_live ? *(const float2*)(from + 8 * half) : make_float2(0.f, 0.f);
    }
  UNROLL for (int i = 0; i < OWN_COLUMNS; i++)
    UNROLL for (int j = 0; j < STEPS_LOADED; j++) {
      const int column = warp + i * (WORKERS / 32), step = 8 * j + (lane >> 2);
      const float2 first = v[i][j][0], second = v[i][j][1];
      uint4 q;
      split(__fmul_rn(first.x, scale), __fmul_rn(first.y, scale), q.x, q.z);
      split(__fmul_rn(second.x, scale), __fmul_rn(second.y, scale), q.y, q.w);
      if (step < STEPS) *(uint4*)(incoming.split_query(column) + 16 * step + 4 * (lane & 3)) = q;
    }
  meet_workers();
}

struct Attending {
  State total, running, block;
  float scores[4];

  // A warp's 16 tokens against every column, and the largest score of each.
  METHOD void multiply_keys(const u8* half, const Incoming& incoming, int first_token, const Columns& columns, const Switches& switches, Meeting& meeting) {
    const int warp = own_warp(), lane = threadIdx.x & 31, token = first_token + warp * 16 + (lane >> 2);
    const float* queries = incoming.split_query(lane >> 2) + 4 * (lane & 3);
    UNROLL for (int i = 0; i < 4; i++) scores[i] = 0.f;
    UNROLL for (int first = 0; first < STEPS; first += STEPS_AT_ONCE) {
      u32 k[STEPS_AT_ONCE][4];
      load_keys(k, half, warp, first);
      UNROLL for (int i = 0; i < STEPS_AT_ONCE; i++) {
        const uint4 q = *(const uint4*)(queries + 16 * (first + i));
        multiply_f16(scores, k[i][0], k[i][1], k[i][2], k[i][3], q.x, q.y);
        multiply_f16(scores, k[i][0], k[i][1], k[i][2], k[i][3], q.z, q.w);
      }
    }
    if (SOFT_CAP) UNROLL for (int i = 0; i < 4; i++) scores[i] = switches.capped(scores[i]);
    UNROLL for (int e = 0; e < 2; e++) {
      if (token > columns.seen[e]) scores[e] = MINUS_INFINITY;
      if (token + 8 > columns.seen[e]) scores[2 + e] = MINUS_INFINITY;
      if (WINDOW && token <= columns.seen[e] - switches.window) scores[e] = MINUS_INFINITY;
      if (WINDOW && token + 8 <= columns.seen[e] - switches.window) scores[2 + e] = MINUS_INFINITY;
      float m = fmaxf(scores[e], scores[2 + e]);
      UNROLL for (int far = 4; far < 32; far *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, far));
      if (lane < 4) meeting.largest[2 * lane + e][warp] = m;
    }
  }

  METHOD void weigh(Meeting& meeting) {
    const int warp = own_warp(), lane = threadIdx.x & 31, column = 2 * (lane & 3);
    u32 high[2], low[2];
    UNROLL for (int e = 0; e < 2; e++) {
      const float4 v = *(const float4*)meeting.largest[column + e];
      block.m[e] = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
      const float m = block.m[e] == MINUS_INFINITY ? 0.f : block.m[e];
      split(power_of_2(__fsub_rn(scores[e], m)), power_of_2(__fsub_rn(scores[2 + e], m)), high[e], low[e]);
    }
    // Lanes 4 apart have neighbouring tokens: one takes the high halves of both, the other the low ones.
    const bool is_odd = lane & 4;
    UNROLL for (int e = 0; e < 2; e++) {
      const u32 kept = is_odd ? low[e] : high[e], given = __shfl_xor_sync(~0u, is_odd ? high[e] : low[e], 4);
      const u32 first = is_odd ? given : kept, second = is_odd ? kept : given;
      uint2* to = (uint2*)&meeting.weights[warp][weights_at(column + e, lane >> 3)] + is_odd;
      *to = make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    }
  }

  // Every token for a warp's tiles of 16 dims.
  METHOD void multiply_values(const u8* half, const Meeting& meeting) {
    const int warp = own_warp(), lane = threadIdx.x & 31;
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
    UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = 0; i < 4; i++) block.o[n][i] = 0.f;
    UNROLL for (int first = 0; first < PAGE_TOKENS / 16; first += STEPS_AT_ONCE) {
      uint4 p[STEPS_AT_ONCE];
      UNROLL for (int i = 0; i < STEPS_AT_ONCE; i++) {
        p[i] = meeting.weights[first + i][weights_at(lane >> 2, lane & 3)];
        multiply_f16(sums, ONES, ONES, ONES, ONES, p[i].x, p[i].y);
        multiply_f16(sums, ONES, ONES, ONES, ONES, p[i].z, p[i].w);
      }
      UNROLL for (int n = 0; n < WARP_TILES; n++) {
        const int tile = warp + 4 * n;
        if (STEPS % 4 && tile >= STEPS) break;  // a branch keeps chains apart, so none where every warp has its tiles
        u32 v[STEPS_AT_ONCE][4];
        load_values(v, half, tile, first);
        UNROLL for (int i = 0; i < STEPS_AT_ONCE; i++) {
          multiply_f16(block.o[n], v[i][0], v[i][1], v[i][2], v[i][3], p[i].x, p[i].y);
          multiply_f16(block.o[n], v[i][0], v[i][1], v[i][2], v[i][3], p[i].z, p[i].w);
        }
      }
    }
    block.l[0] = sums[0], block.l[1] = sums[1];
  }

  // The state of the unit's block b, after those of all before it.
  METHOD void fold(const State& state, const Unit& unit, int b) {
    running.fold(state);
    if (unit.chunk < 0 && ((unit.block + b) % FOLDED_BLOCKS == FOLDED_BLOCKS - 1 || b == unit.blocks - 1)) {
      total.fold(running);
      running.clear();
    }
  }
};

#if TEAMS > 1
struct Handed {
  float4 states[2][STATE_WORDS][TEAM_THREADS];
  u64 barriers[4];
};

// The way of the second team's states to the first, which folds all of them in order: from thread to thread of the same place in its team.
struct Relay {
  Pipe<2, STATE_WORDS * TEAM_THREADS * 16> states;

  METHOD Relay(const Handed& handed) : states((const u8*)handed.states, handed.barriers) {
    if (threadIdx.x == 0) states.set(TEAM_THREADS, TEAM_THREADS);
  }
  METHOD u32 place(int word) const { return states.slot() + (word * TEAM_THREADS + threadIdx.x % TEAM_THREADS) * 16; }

  METHOD void hand(const State& state) {
    wait_barrier(states.filled() + 8, states.phase ^ 1);
    UNROLL for (int word = 0; word < STATE_WORDS; word++) put_shared(place(word), ((const float4*)&state)[word]);
    arrive(states.filled());
    states.pass();
  }
  METHOD State taken() {
    State state;
    states.wait();
    UNROLL for (int word = 0; word < STATE_WORDS; word++) ((float4*)&state)[word] = shared_at<float4>(place(word));
    states.give_back_each<false>();
    return state;
  }
};
#else
struct Handed {};
struct Relay {
  METHOD Relay(const Handed&) {}
  METHOD void hand(const State&) {}
  METHOD State taken() { return State(); }
};
#endif

// The sinks of a lane's columns, folded into finished rows.
DEVICE void fold_sinks(State& total, const Switches& switches, const Columns& columns) {
  UNROLL for (int e = 0; e < 2; e++) {
    const Weights w = switches.absorb_sink(total.m[e], total.l[e], columns.heads[e]);
    UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = e; i < 4; i += 2) total.o[n][i] = folded(total.o[n][i], 0.f, w);
  }
}

struct Results {
  float* out;
  i64 out_stride;
  float* partial_o;
  float2* partial_ml;
  int heads;

  METHOD void put(const State& state, const Unit& unit, const Columns& columns) const {
    const int warp = own_warp(), lane = threadIdx.x & 31, r = lane >> 2;
    const bool is_whole = unit.chunk < 0;
    UNROLL for (int e = 0; e < 2; e++) {
      if (columns.seen[e] < 0 || columns.parts[e] < 0) continue;
      const i64 part = (i64)columns.parts[e] * heads + columns.heads[e];
      float* to = is_whole ? out + columns.rows[e] * out_stride + columns.heads[e] * HEAD_DIM : partial_o + part * HEAD_DIM;
      const float inverse = is_whole ? __fdiv_rn(1.f, state.l[e]) : 1.f;
      if (!is_whole && warp == 0 && r == 0) partial_ml[part] = make_float2(state.m[e], state.l[e]);
      UNROLL for (int n = 0; n < WARP_TILES; n++) {
        const int dim = (warp + 4 * n) * 16 + r;
        if (dim >= HEAD_DIM) break;
        to[dim] = __fmul_rn(state.o[n][e], inverse);
        to[dim + 8] = __fmul_rn(state.o[n][2 + e], inverse);
      }
    }
  }
};

#if SPENT
// Lines that nobody reads again are dropped from the L2: on their way to memory they would meet the pages that come from there.
DEVICE void drop(const u8* from, i64 size_bytes) {
  for (i64 at = ((i64)blockIdx.x * WORKERS + threadIdx.x) * LINE_BYTES; at < size_bytes; at += (i64)gridDim.x * WORKERS * LINE_BYTES)
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(from + at) : "memory");
}
#endif

extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, BLOCKS)
attention(const float* q, i64 q_stride, const u8* layer, float* out, i64 out_stride, float* partial_o, float2* partial_ml, int heads, int kv_heads, float scale,
          const int* step, Switches switches, const u8* spent, int spent_row_bytes) {
  extern __shared__ __align__(128) u8 slots[];
  __shared__ Meeting meetings[TEAMS];
  __shared__ Shared shared;
  __shared__ Handed handed;
  let_next_start();
  const int group = heads / kv_heads, head_tiles = (group + COLUMNS - 1) / COLUMNS;
  const int items = kv_heads * head_tiles;  // of a unit
  const Geometry geometry = {q, q_stride, layer, step, kv_heads, group, head_tiles, step[UNITS] * items, step[LONGEST_UNITS] * items, switches};
  const Results results = {out, out_stride, partial_o, partial_ml, heads};
  Relay relay(handed);
  Incoming incoming(geometry, slots, shared);
#if HAS_COPY_ENGINE
  if (threadIdx.x >= WORKERS) {
    if (threadIdx.x == WORKERS) incoming.bring();
    return;
  }
#endif
#if SPENT
  await_previous();
  drop(spent, (i64)step[ROWS] * spent_row_bytes);
#endif
  Unit unit;
  Attending a;
  while (incoming.open(unit)) {
    const Columns columns(unit, step);
    await_previous();
    split_queries(incoming, unit, scale);
    a.total.clear();
    a.running.clear();
    for (int b = own_team(); b < unit.blocks; b += TEAMS) {
      incoming.turn_to(b);
      a.multiply_keys(slots + incoming.wait(), incoming, (unit.block + b) * PAGE_TOKENS, columns, switches, meetings[own_team()]);
      incoming.done();
      meet_team();
      a.weigh(meetings[own_team()]);
      meet_team();
      a.multiply_values(slots + incoming.wait(), meetings[own_team()]);
      incoming.done();
      if (own_team() > 0) {
        relay.hand(a.block);
        continue;
      }
      if (TEAMS > 1 && b > 0) a.fold(relay.taken(), unit, b - 1);
      a.fold(a.block, unit, b);
    }
    incoming.end(unit);
    if (own_team() > 0) continue;
    if (TEAMS > 1 && unit.blocks % 2 == 0) a.fold(relay.taken(), unit, unit.blocks - 1);
    if (SINKS && unit.chunk < 0) fold_sinks(a.total, switches, columns);
    if (unit.chunk < 0) results.put(a.total, unit, columns);
    else results.put(a.running, unit, columns);
  }
  await_previous();
}
