// Attention of many rows of one session, by warpgroups (sm_90a): the arithmetic of attention.cu with (row, query head) pairs, places, as the rows of
// the products. A tensor core's result is a function of its two operand rows and the sum so far, so the bits are attention's.
//
// A unit is up to 128 places of one kv head, 64 a team, against every block that they see. Where there are few units, `splits` thread blocks share one:
// each takes every splits-th group of 8 blocks, and a group's state waits for its turn to be folded into the unit's total, which then lies in
// global memory. A third warpgroup brings keys, values, keys, ... The values of a block and the scores of the next are in flight together.
#include "warpgroup.cuh"
#include "wide_pages.cuh"

#define STEPS (HEAD_DIM / 16)
#define DIM_TILES (HEAD_DIM / 8)
#define PANELS (HEAD_DIM / 64)
#define PANEL_BYTES (PAGE_TOKENS * 128)
#define TEAM_PLACES 64
#define TEAM_THREADS 128
#define WORKERS (2 * TEAM_THREADS)
#define QUERY_BYTES (TEAM_PLACES * HEAD_DIM * 2)

// A reading warp is done with a slot that the tensor cores alone have read.
DEVICE void give_back(const TilePipe& pipe) { give_back_slot(pipe.filled() + 8); }

// A unit's total and whose turn it is: a thread reads and writes its own places only, so a warp has a turn of its own. Turns pass late, behind products:
// a warp waits for its stores before it passes one.
struct Totals {
  float4 *o, *ml;
  int *turn, passing;

  METHOD void await_turn(int group) const {
    if ((threadIdx.x & 31) == 0) {
      int at;
      do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(at) : "l"(turn) : "memory");
      while (at != group);
    }
    __syncwarp();
  }
  METHOD void pass_turn() {
    if (passing == 0) return;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(passing) : "memory");
    passing = 0;
  }
  METHOD void end_turns() const {
    if ((threadIdx.x & 31) == 0) *turn = 0;
  }
};

// Two places of a lane: rows r and r + 8 of its warp's 16, as the products' fragments have them.
struct Places {
  u32 q_high[STEPS][4], q_low;  // the low halves lie in shared memory
  u32 high[4][4], low[4][4];    // of a block's weights
  float scores[8][4], part[8][4], sums[4];
  float m[2], l[2], o[DIM_TILES][4];
  Weights folds[2];
  u64 ones;
  int positions[2], first_position;

  METHOD void clear() {
    UNROLL for (int e = 0; e < 2; e++) m[e] = MINUS_INFINITY, l[e] = 0.f;
    UNROLL for (int n = 0; n < DIM_TILES; n++) UNROLL for (int i = 0; i < 4; i++) o[n][i] = 0.f;
  }

  METHOD void load_queries(const float* q, i64 q_stride, float scale, const Unit& unit, int group, const int* row_positions, int place) {
    const int t = threadIdx.x & 3, live = unit.rows * group;
    UNROLL for (int e = 0; e < 2; e++) {
      const int at = place + 8 * e, row = unit.row + (at < live ? at / group : 0), in_team = at % TEAM_PLACES;
      const float* from = q + row * q_stride + (unit.kv_head * group + at % group) * HEAD_DIM + 2 * t;
      positions[e] = row_positions[row];
      UNROLL for (int i = 0; i < STEPS; i++)
        UNROLL for (int j = 0; j < 2; j++) {
          const float2 v = at < live ? *(const float2*)(from + i * 16 + j * 8) : make_float2(0.f, 0.f);
          u32 lower;
          split(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), q_high[i][2 * j + e], lower);
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(q_low + chunk_at(HEAD_DIM, in_team, 2 * i + j) + t * 4), "r"(lower) : "memory");
        }
    }
    first_position = row_positions[unit.row];
  }

  METHOD void multiply_keys(u32 keys) {
    UNROLL for (int i = 0; i < STEPS; i++) {
      const u32 offset = (i >> 2) * PANEL_BYTES + (i & 3) * 32;
      multiply_panel<0>(scores, q_high[i], panel_at(keys + offset), i > 0);
      multiply_panels(scores, panel_at(q_low + offset), panel_at(keys + offset));
    }
    commit_products();
  }

  METHOD void multiply_values(u32 values, int panel) {
    UNROLL for (int k = 0; k < 4; k++) {
      const u64 b = panel_at(values + panel * PANEL_BYTES + k * 2048);
      multiply_panel<1>(part, high[k], b, k > 0);
      multiply_panel<1>(part, low[k], b, 1);
      if (panel > 0) continue;
      multiply_column(sums, high[k], ones, k > 0);
      multiply_column(sums, low[k], ones, 1);
    }
    commit_products();
  }

  METHOD void mask(int first_token) {
    if (first_token + PAGE_TOKENS - 1 <= first_position) return;
    UNROLL for (int n = 0; n < 8; n++)
      UNROLL for (int i = 0; i < 4; i++)
        if (first_token + n * 8 + 2 * (int)(threadIdx.x & 3) + (i & 1) > positions[i >> 1]) scores[n][i] = MINUS_INFINITY;
  }
  METHOD void mask_unseen(int first_token, int window) {
    if (first_token > max(positions[0], positions[1]) - window) return;
    UNROLL for (int n = 0; n < 8; n++)
      UNROLL for (int i = 0; i < 4; i++)
        if (first_token + n * 8 + 2 * (int)(threadIdx.x & 3) + (i & 1) <= positions[i >> 1] - window) scores[n][i] = MINUS_INFINITY;
  }

  // Scores to weights; how the block's state and the one so far will fold.
  METHOD void weigh(int block, const Switches& switches) {
    if (SOFT_CAP) UNROLL for (int n = 0; n < 8; n++) UNROLL for (int i = 0; i < 4; i++) scores[n][i] = switches.capped(scores[n][i]);
    mask(block * PAGE_TOKENS);
    if (WINDOW) mask_unseen(block * PAGE_TOKENS, switches.window);
    UNROLL for (int e = 0; e < 2; e++) {
      float largest = fmaxf(scores[0][2 * e], scores[0][2 * e + 1]);
      UNROLL for (int n = 1; n < 8; n++) largest = fmaxf(largest, fmaxf(scores[n][2 * e], scores[n][2 * e + 1]));
      UNROLL for (int far = 1; far < 4; far *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
      folds[e] = absorb(m[e], largest);
      if (largest == MINUS_INFINITY) largest = 0.f;
      UNROLL for (int n = 0; n < 8; n++)
        split(power_of_2(__fsub_rn(scores[n][2 * e], largest)), power_of_2(__fsub_rn(scores[n][2 * e + 1], largest)), high[n >> 1][(n & 1) * 2 + e],
              low[n >> 1][(n & 1) * 2 + e]);
    }
  }

  METHOD void fold_sums() { UNROLL for (int e = 0; e < 2; e++) l[e] = folded(l[e], sums[2 * e], folds[e]); }

  METHOD void fold_values(int panel) {
    UNROLL for (int n = 0; n < 8; n++) UNROLL for (int i = 0; i < 4; i++) o[8 * panel + n][i] = folded(o[8 * panel + n][i], part[n][i], folds[i >> 1]);
  }

  // The group so far into the unit's total; true, with the finished rows in `o`, where it was the last.
  METHOD bool close_group(const Unit& unit, int block, Totals& totals) {
    const int group = block / FOLDED_BLOCKS - unit.first_group();
    const bool is_first = group == 0, is_last = block == unit.blocks - 1;
    if (unit.splits > 1 && !is_first) totals.await_turn(group);
    float4 ml = is_first ? make_float4(MINUS_INFINITY, 0.f, MINUS_INFINITY, 0.f) : *totals.ml;
    const Weights w[2] = {absorb(ml.x, m[0]), absorb(ml.z, m[1])};
    ml.y = folded(ml.y, l[0], w[0]), ml.w = folded(ml.w, l[1], w[1]);
    UNROLL for (int n = 0; n < DIM_TILES; n++) {
      const float4 v = is_first ? make_float4(0.f, 0.f, 0.f, 0.f) : totals.o[n * WORKERS];
      o[n][0] = folded(v.x, o[n][0], w[0]), o[n][1] = folded(v.y, o[n][1], w[0]);
      o[n][2] = folded(v.z, o[n][2], w[1]), o[n][3] = folded(v.w, o[n][3], w[1]);
      if (!is_last) totals.o[n * WORKERS] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    }
    if (!is_last) *totals.ml = ml;
    if (unit.splits > 1 && !is_last) totals.passing = group + 1;
    if (unit.splits > 1 && is_last) totals.end_turns();
    l[0] = ml.y, l[1] = ml.w;
    if (SINKS) m[0] = ml.x, m[1] = ml.z;
    return is_last;
  }

  METHOD void fold_sink(int e, int head, const Switches& switches) {
    const Weights w = switches.absorb_sink(m[e], l[e], head);
    UNROLL for (int n = 0; n < DIM_TILES; n++) UNROLL for (int i = 2 * e; i < 2 * e + 2; i++) o[n][i] = folded(o[n][i], 0.f, w);
  }

  METHOD void put_rows(const Unit& unit, int group, int place, const Switches& switches, float* out, i64 out_stride) {
    UNROLL for (int e = 0; e < 2; e++) {
      const int at = place + 8 * e;
      if (at >= unit.rows * group) continue;
      if (SINKS) fold_sink(e, unit.kv_head * group + at % group, switches);
      const float inverse = __fdiv_rn(1.f, l[e]);
      float* to = out + (unit.row + at / group) * out_stride + (unit.kv_head * group + at % group) * HEAD_DIM + 2 * (threadIdx.x & 3);
      UNROLL for (int n = 0; n < DIM_TILES; n++) *(float2*)(to + n * 8) = make_float2(__fmul_rn(o[n][2 * e], inverse), __fmul_rn(o[n][2 * e + 1], inverse));
    }
  }
};

// The same address for the whole warp, as the products want it.
DEVICE u32 slot_of(const TilePipe& pipe) { return __shfl_sync(~0u, pipe.slot(), 0); }

// A unit's blocks one after the other; true where this thread block has finished its rows.
DEVICE bool attend(Places& places, const Unit& unit, const Switches& switches, TilePipe& pipe, Totals& totals) {
  int block = unit.first();
  places.clear();
  pipe.wait();
  begin_products();
  places.multiply_keys(slot_of(pipe));
  await_products<0>();
  give_back(pipe), pipe.pass();
  places.weigh(block, switches);
  for (int next = unit.after(block); next < unit.blocks; next = unit.after(block)) {
    pipe.wait();
    const TilePipe values = pipe;
    begin_products();
    places.multiply_values(slot_of(values), 0);
    pipe.pass();
    pipe.wait();
    begin_products();
    places.multiply_keys(slot_of(pipe));
    totals.pass_turn();
    await_products<1>();
    places.fold_values(0);
    places.fold_sums();
    if (PANELS > 1) begin_products(), places.multiply_values(slot_of(values), 1);
    await_products<0>();
    give_back(values), give_back(pipe), pipe.pass();
    if (PANELS > 1) places.fold_values(PANELS - 1);
    if (unit.closes_group(block)) places.close_group(unit, block, totals), places.clear();
    places.weigh(next, switches);
    block = next;
  }
  pipe.wait();
  UNROLL for (int panel = 0; panel < PANELS; panel++) {
    begin_products();
    places.multiply_values(slot_of(pipe), panel);
    totals.pass_turn();
    await_products<0>();
    places.fold_values(panel);
  }
  places.fold_sums();
  give_back(pipe), pipe.pass();
  const bool is_last = places.close_group(unit, block, totals);
  totals.pass_turn();
  return is_last;
}

DEVICE void meet_team(int team) { asm volatile("bar.sync %0, 128;" ::"r"(1 + team) : "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1)
attention_wide(const float* q, i64 q_stride, const u8* layer, float* out, i64 out_stride, float4* total_o, float4* total_ml, int* turns, int heads, int kv_heads,
               float scale, const int* step, Switches switches) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ u64 barriers[2 * STAGES];
#if KV_BITS == 8
  __shared__ u64 raw_barriers[2 * RAW_STAGES];
#endif
  __shared__ __align__(128) u32 ones[64];
  let_next_start();
  const Geometry geometry = {step, kv_heads, heads / kv_heads, step[WIDE_UNITS] * kv_heads, switches};
  TilePipe pipe(shared, barriers);
  u8* own = shared + STAGES * TILE_BYTES + 2 * QUERY_BYTES;
#if KV_BITS == 8
  u8* raw_slots = own + WORKERS * (DIM_TILES + 1) * 16;
  RawPipe raw(raw_slots, raw_barriers);
  if (threadIdx.x == 0) raw.set(1), pipe.set(WORKERS / 32, FEED_THREADS / 32);
#else
  if (threadIdx.x == 0) pipe.set(WORKERS / 32);
#endif
  if (threadIdx.x < 64) ones[threadIdx.x] = ONES;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  await_previous();
  if (threadIdx.x >= WORKERS) {
#if KV_BITS == 8
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    bring_pages(pipe, Halves(geometry, layer), raw, raw_slots);
#else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == WORKERS) bring_pages(pipe, geometry, layer);
#endif
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KV_BITS == 8 ? 224 : 240));
  const int team = __shfl_sync(~0u, threadIdx.x / TEAM_THREADS, 0), warp = threadIdx.x >> 5, place = 16 * warp + (threadIdx.x & 31) / 4;
  Places places;
  places.q_low = __shfl_sync(~0u, shared_address(shared) + STAGES * TILE_BYTES + team * QUERY_BYTES, 0);
  places.ones = (u64)((shared_address(ones) >> 4) & 0x3fff) | 8ull << 16 | 8ull << 32;
  for (int item = blockIdx.x; item < geometry.items; item += gridDim.x) {
    const Unit unit = geometry.at(item);
    if (unit.is_empty()) continue;
    if (team * TEAM_PLACES >= unit.rows * geometry.group) {
      for (int block = unit.first(); block < unit.blocks; block = unit.after(block))
        for (int half = 0; half < 2; half++) pipe.wait(), give_back(pipe), pipe.pass();
      continue;
    }
    meet_team(team);
    places.load_queries(q, q_stride, scale, unit, geometry.group, row_array(step, POSITIONS), place);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    meet_team(team);
    Totals totals = {(float4*)own + threadIdx.x, (float4*)own + DIM_TILES * WORKERS + threadIdx.x, turns + unit.slot * (WORKERS / 32) + warp, 0};
    if (unit.splits > 1) {
      totals.o = total_o + (size_t)unit.slot * DIM_TILES * WORKERS + threadIdx.x;
      totals.ml = total_ml + unit.slot * WORKERS + threadIdx.x;
    }
    if (attend(places, unit, switches, pipe, totals)) places.put_rows(unit, geometry.group, place, switches, out, out_stride);
  }
}
