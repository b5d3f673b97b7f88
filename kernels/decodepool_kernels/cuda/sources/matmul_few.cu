// out = W x (+ bias) of up to 8 rows and a k-quant on sm_90: 8 slices of K a warp each, TEAMS times; a team has ROW_TILES x 16 of a unit's outputs. A slot of the
// block's ring holds 8 groups, a group a slice, which are one run of bytes for a pair of tiles; warps take turns to have it filled anew, and to
// fold a unit's slices in order, y = fma(acc, 2^-e, y), while the others go on. Weights of the first units are on their way before the kernel
// ahead has ended. SPREAD: up to 4 rows, row r in the tensor core's column 2r, so that a lane has one column's sums instead of two.
#define TILES 1  // of 8 rows
#define UNIT_TILES (ROW_TILES * TEAMS)
#define UNIT_OUTPUTS (16 * UNIT_TILES)
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"

#define WARPS (SLICES * TEAMS)
#define PAIRS (UNIT_TILES / 2)
#define RUN_BYTES (2 * (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES))
#define PAIR_BYTES (SLICES * RUN_BYTES)
#define UNIT_SUMS (SLICES * UNIT_TILES * 32)
#define QUADS (SCALE_PLANES * PARTS / 2)
#define BLOCK_QUADS (8 * QUADS + 2)  // two more, so that four blocks' are put into different banks
#define TILE_QUADS (GROUP_BLOCKS * BLOCK_QUADS - 2)
#define WARP_QUADS (ROW_TILES * TILE_QUADS)
#if SPREAD
typedef float2 Kept;  // of one row, outputs g and g + 8
#else
typedef float4 Kept;
#endif

typedef Pipe<STAGES, PAIRS * PAIR_BYTES> WeightPipe;
typedef Pipe<2, UNIT_SUMS * sizeof(Kept)> SumsPipe;

#define BLOCK_PLANES (COLUMNS / 8 * PLANES * FRAGMENT_BYTES)  // bytes
#define BLOCK_SUMS (2 * COLUMNS)

// Where a lane's activations lie, group by group of its warp's slice. Lanes of rows that are not there load nothing, and keep zeros.
struct Rows {
  const u8* planes;
  const float* sums;
  bool has_row, has_sums;

  METHOD Rows(const Activation& a, int slice, int rows) {
    const int lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2, row = SPREAD ? g / 2 : g, column = SPREAD ? t : 2 * t;
    planes = fragments_at(a, slice * GROUP_BLOCKS, 0) + row * 64 + t * 16;
    sums = a.sums + slice * GROUP_BLOCKS * BLOCK_SUMS + 2 * column;
    has_row = row < rows && (!SPREAD || g % 2 == 0);
    has_sums = column < rows;
  }

  METHOD void fetch(Columns& x, int q) const {
    UNROLL for (int plane = 0; plane < PLANES; plane++)
      if (has_row) x.planes[plane] = *(const uint4*)(planes + (q * BLOCK_PLANES + plane * FRAGMENT_BYTES));
#if HAS_MINIMUM && SPREAD
    float2 pair = make_float2(x.sums.x, x.sums.y);
    if (has_sums) pair = *(const float2*)(sums + q * BLOCK_SUMS);
    x.sums = make_float4(pair.x, pair.y, pair.x, pair.y);
#elif HAS_MINIMUM
    if (has_sums) x.sums = *(const float4*)(sums + q * BLOCK_SUMS);
#endif
  }

  METHOD Rows(const Rows& first, const Rows& second, bool is_first)
      : planes(is_first ? first.planes : second.planes), sums(is_first ? first.sums : second.sums), has_row(first.has_row), has_sums(first.has_sums) {}

  METHOD void advance() {
    planes += SLICES * GROUP_BLOCKS * BLOCK_PLANES;
    sums += SLICES * GROUP_BLOCKS * BLOCK_SUMS;
  }
};

// Where a lane finds what it needs of a whole group of its warp's first tile in the ring's first slot; in shared memory.
struct Places {
  u32 codes, scales, units;  // and, of scales found together, where its own block's go, and where it reads those of all blocks
  u32 own_quads, all_quads, above;

  METHOD Places(u32 slots, u32 scratch, int warp, int blocks) {
    const int lane = threadIdx.x & 31, g = lane >> 2, slice = warp % SLICES, tile = warp / SLICES * ROW_TILES;
    const u32 group = slots + tile / 2 * PAIR_BYTES + slice * RUN_BYTES + tile % 2 * group_bytes(GROUP_BLOCKS);
    codes = group + HEAD_BYTES + lane * sizeof(Words);
    scales = group + g * (SCALE_PLANES * PARTS * 8);
    units = group + FACTORS_BYTES + g * (SCALE_PLANES * 4);
    all_quads = scratch + warp * WARP_QUADS * 16 + g * 16;
    above = BYTE_ABOVE | (u32)blocks >> 31;  // no more than BYTE_ABOVE, as the compiler cannot know: it is kept in a register, a byte's place at hand
    own_quads = all_quads + (lane & 3) * BLOCK_QUADS * 16;
  }
};

DEVICE constexpr int tile_offset(int r) { return r / 2 * PAIR_BYTES + r % 2 * (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES); }

// The scales of a group, a lane those of one block, for all lanes of the warp.
DEVICE void share_scales(const Places& at, u32 slot) {
  UNROLL for (int r = 0; r < ROW_TILES; r++) {
    Head head(at.above);
    UNROLL for (int i = 0; i < HEAD_WORDS / 4; i++) *(uint4*)(head.words + 4 * i) = shared_at<uint4>(at.scales + slot + tile_offset(r) + 16 * i);
    UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++) head.set_units(plane, shared_at<u32>(at.units + slot + tile_offset(r) + 4 * plane));
    UNROLL for (int i = 0; i < QUADS; i++) {
      const int t = threadIdx.x & 3;
      const float2 first = head.pair(2 * i / PARTS, t, 2 * i % PARTS), second = head.pair((2 * i + 1) / PARTS, t, (2 * i + 1) % PARTS);
      put_shared(at.own_quads + (r * TILE_QUADS + 8 * i) * 16, make_float4(first.x, first.y, second.x, second.y));
    }
  }
  __syncwarp();
}

// Block q of a warp's tile r, of a whole group.
DEVICE void load_record(Record& w, const Places& at, u32 slot, int r, int q, u32 offset) {
  widen(w.codes, shared_at<Words>(at.codes + slot + tile_offset(r) + q * RECORD_BYTES), offset);
  UNROLL for (int i = 0; i < QUADS; i++) {
    const float4 quad = shared_float4(at.all_quads + (r * TILE_QUADS + q * BLOCK_QUADS + 8 * i) * 16);
    w.scales[2 * i / PARTS][2 * i % PARTS] = make_float2(quad.x, quad.y);
    w.scales[(2 * i + 1) / PARTS][(2 * i + 1) % PARTS] = make_float2(quad.z, quad.w);
  }
}

// acc += a whole group. x has the activations of its first two blocks, and then those of the next whole group, of this unit or the next.
DEVICE void fold_group(float (&acc)[ROW_TILES][1][4], Columns (&x)[2][1], const Places& at, u32 slot, u32 offset, const Rows& rows, const Rows& next) {
  share_scales(at, slot);
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    Record w[ROW_TILES];
    UNROLL for (int r = 0; r < ROW_TILES; r++) load_record(w[r], at, slot, r, q, offset);
    fold_blocks(acc, 0, w, x[q % 2]);
    if (q < 2) rows.fetch(x[q % 2][0], q + 2);
    else next.fetch(x[q % 2][0], q - 2);
  }
}

// The same of a short group, the last of a row.
DEVICE void fold_short(float (&acc)[ROW_TILES][1][4], const u8* slot, int count, u32 offset, const Rows& rows) {
  const int warp = threadIdx.x >> 5, tile = warp / SLICES * ROW_TILES;
  for (int q = 0; q < count; q++) {
    Record w[ROW_TILES];
    UNROLL for (int r = 0; r < ROW_TILES; r++) {
      const u8* from = slot + (tile + r) / 2 * PAIR_BYTES + warp % SLICES * RUN_BYTES + (tile + r) % 2 * group_bytes(count);
      w[r].load(Head(from, (threadIdx.x & 31) >> 2), from, q, threadIdx.x & 31, offset);
    }
    Columns x[1] = {};
    rows.fetch(x[0], q);
    fold_blocks(acc, 0, w, x);
  }
}

// A slice's sums, for the warp that folds; every lane arrives with its own.
DEVICE void keep_sums(SumsPipe& pipe, Kept* all, const float (&acc)[ROW_TILES][1][4], int slice, int team) {
  const int lane = threadIdx.x & 31;
  Kept* sums = all + pipe.stage * UNIT_SUMS + lane;
  wait_barrier(pipe.filled() + 8, pipe.phase ^ 1);
  UNROLL for (int r = 0; r < ROW_TILES; r++) {
    Kept& to = sums[(slice * UNIT_TILES + team * ROW_TILES + r) * 32];
#if SPREAD
    to = make_float2(acc[r][0][0], acc[r][0][2]);
#else
    to = make_float4(acc[r][0][0], acc[r][0][1], acc[r][0][2], acc[r][0][3]);
#endif
  }
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(pipe.filled()) : "memory");
  pipe.pass();
}

// The run of slots that a block's ring takes: groups first to first + 7 of each of its units.
struct Feed {
  int unit, first;

  METHOD void pass(int groups) {
    first += SLICES;
    if (first >= groups) first = 0, unit += gridDim.x;
  }

  // By one thread: the slot's copies, once its readers have given it back.
  METHOD void fill(const WeightPipe& pipe, const Parts& parts, const Product& p) const {
    const Unit at = p.at(unit);
    const Part& part = parts.part[at.part];
    const int pairs = min(PAIRS, (part.outputs + 31) / 32 - at.tile / 2), past = min(p.blocks, (first + SLICES) * GROUP_BLOCKS);
    const int whole = past / GROUP_BLOCKS - first, rest = past % GROUP_BLOCKS, bytes = whole * RUN_BYTES + (rest > 0 ? 2 * group_bytes(rest) : 0);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(pipe.filled()), "r"(pairs * bytes) : "memory");
    for (int pair = 0; pair < pairs; pair++)
      copy_run(pipe.slot() + pair * PAIR_BYTES, part.weights + group_offset(at.tile + 2 * pair, first, p.blocks), bytes, pipe.filled(), GOES_FIRST);
  }
};

// A warp folds a unit's slices and puts its outputs.
DEVICE void fold_unit(SumsPipe pipe, const Kept* all, const Parts& parts, const Product& p, const Activation& a, int unit, const int* logits_slots) {
  const int lane = threadIdx.x & 31;
  const Unit at = p.at(unit);
  const Part& part = parts.part[at.part];
  pipe.wait();
  const Kept* sums = all + pipe.stage * UNIT_SUMS + lane;
  const int row = (SPREAD ? 1 : 2) * (lane & 3);
  float2 down[SLICES];
  UNROLL for (int s = 0; s < SLICES; s++) down[s] = *(const float2*)(a.scales + s * COLUMNS + (SPREAD ? row & 2 : row));
  for (int r = 0; r < UNIT_TILES; r++) {
    float y[4] = {};
    UNROLL for (int s = 0; s < SLICES; s++) {
      const Kept sum = sums[(s * UNIT_TILES + r) * 32];
#if SPREAD
      const float own = row & 1 ? down[s].y : down[s].x;
      y[0] = fmaf(sum.x, own, y[0]);
      y[2] = fmaf(sum.y, own, y[2]);
#else
      y[0] = fmaf(sum.x, down[s].x, y[0]);
      y[1] = fmaf(sum.y, down[s].y, y[1]);
      y[2] = fmaf(sum.z, down[s].x, y[2]);
      y[3] = fmaf(sum.w, down[s].y, y[3]);
#endif
    }
    UNROLL for (int j = 0; j < 4; j += SPREAD ? 2 : 1) {
      const int output = (at.tile + r) * 16 + (lane >> 2) + (j & 2) * 4, own = row + (j & 1);
      if (own < p.rows && output < part.outputs) put_output(part, logits_slots == nullptr ? own : logits_slots[own], output, y[j]);
    }
  }
  pipe.give_back<false>();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
matmul_few(const __grid_constant__ Parts parts, u8* activation, int blocks, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[2 * (STAGES + 2)];
  Kept* all_sums = (Kept*)(shared + STAGES * PAIRS * PAIR_BYTES);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
  WeightPipe weights(shared, barriers);
  SumsPipe sums_pipe((const u8*)all_sums, barriers + 2 * STAGES);
  if (threadIdx.x == 0) weights.set(WARPS), sums_pipe.set(1, 32 * WARPS);
  __syncthreads();
  let_next_start();
  const Product p(parts, blocks, __shfl_sync(~0u, step[domain], 0));
  const Activation a = activation_at(activation, blocks, COLUMNS);
  Feed feed = {(int)blockIdx.x, 0};
  WeightPipe before = weights;  // the slot of the visit before
  for (int stage = 0; stage < STAGES; stage++) {
    if (stage > 0) feed.pass(groups), before.pass();
    if (threadIdx.x == 0 && feed.unit < p.units()) feed.fill(before, parts, p);
  }
  __syncwarp();
  await_previous();
  const int slice = warp % SLICES, visits = (groups + SLICES - 1) / SLICES, most = blocks - slice * GROUP_BLOCKS;
  const int* logits_slots = domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr;
  const Places places(weights.slots, shared_address(all_sums + 2 * UNIT_SUMS), warp, blocks);
  const Rows start(a, slice, p.rows);
  Columns x[2][1] = {};
  if (most >= GROUP_BLOCKS) start.fetch(x[0][0], 0), start.fetch(x[1][0], 1);
  int turn = warp + 1;  // visits until this warp has the slot before filled anew
  for (int unit = blockIdx.x, fold_turn = warp; unit < p.units(); unit += gridDim.x) {
    const u32 offset = code_offset(parts.part[p.at(unit).part].zero);
    float acc[ROW_TILES][1][4] = {};
    Rows rows = start;
    for (int visit = 0, left = most; visit < visits; visit++, left -= SLICES * GROUP_BLOCKS) {
      Rows next = rows;
      next.advance();
      weights.wait();
      if (turn == 0) {
        turn = WARPS;
        if (lane == 0 && feed.unit < p.units()) {
          wait_barrier(before.filled() + 8, before.phase);
          feed.fill(before, parts, p);
        }
        __syncwarp();
      }
      turn--;
      feed.pass(groups);
      before = weights;
      if (left >= GROUP_BLOCKS)
        fold_group(acc, x, places, weights.stage * (PAIRS * PAIR_BYTES), offset, rows, Rows(next, start, left >= (SLICES + 1) * GROUP_BLOCKS));
      else if (left > 0)
        fold_short(acc, shared + weights.stage * (PAIRS * PAIR_BYTES), left, offset, rows);
      weights.give_back<true>();
      rows = next;
    }
    const SumsPipe kept = sums_pipe;
    keep_sums(sums_pipe, all_sums, acc, slice, warp / SLICES);
    if (fold_turn == 0) fold_unit(kept, all_sums, parts, p, a, unit, logits_slots), fold_turn = WARPS;
    fold_turn--;
  }
}
