// out = W x (+ bias) of up to 8 rows on sm_90: TEAMS of 8 warps a block, warp s of a team sums slice s of K for up to MOST_TILES x 16 outputs
// at once. It keeps a group's activations in registers while it takes that group of one tile after the other from a ring of its own; the
// tiles' sums wait in shared memory, where the slices fold in the end, y = fma(acc, 2^-e, y). Teams share a product's tiles out evenly; the
// first weights are on their way before the kernel ahead has ended.
// SPREAD: up to 4 rows, row r in the tensor core's column 2r, so that a lane has one column's sums instead of two.
#define TILES 1  // of 8 rows
#define UNIT_OUTPUTS 16
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"

#define WARPS (SLICES * TEAMS)
#define SLOT_BYTES (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES)
#define SLOT_STRIDE (SLOT_BYTES + 16)  // its barrier stands behind it
#define RUN_BYTES (SLICES * 2 * SLOT_BYTES)  // from a tile's group to the next of its slice
#ifndef MOST_THREADS
#define MOST_THREADS (32 * WARPS + 64 * TEAMS)  // what registers are left for: a block of a small kernel starts beside this one
#endif
#if SPREAD
typedef float2 Kept;  // of one row, outputs g and g + 8
#else
typedef float4 Kept;
#endif

#ifndef REHEARSED
#define REHEARSED 1
#endif
#ifndef ABREAST
#define ABREAST 2
#endif
#define ROLLED _Pragma("unroll 1")  // code is fetched anew at every launch
#define TILE_SUMS (SLICES * 32)
#define BLOCK_PLANES (COLUMNS / 8 * PLANES * FRAGMENT_BYTES)  // bytes
#define BLOCK_SUMS (2 * COLUMNS)

// A value kept in a register, which the compiler would make anew at every use.
DEVICE u32 held(u32 value) {
  asm volatile("mov.u32 %0, %0;" : "+r"(value));
  return value;
}

// A team's tiles, and those of them that its warps take at once.
struct Share {
  int first, past;

  METHOD Share(int tiles) {
    const u32 teams = gridDim.x * TEAMS, team = threadIdx.x / (32 * SLICES) * gridDim.x + blockIdx.x, each = tiles / teams, more = tiles % teams;
    first = each * team + min(team, more), past = first + each + (team < more);
  }
  METHOD int count() const { return min(MOST_TILES, past - first); }
  METHOD void pass() { first += count(); }
};

// One side's place in a warp's ring.
struct Place {
  u32 first, at;
  int phase;

  METHOD Place(u32 first) : first(first), at(first), phase(0) {}
  METHOD u32 barrier() const { return at + SLOT_BYTES; }
  METHOD void pass() {
    at += SLOT_STRIDE;
    if (at == first + STAGES * SLOT_STRIDE) at = first, phase ^= 1;
  }
};

// The order in which a warp's ring is filled: of each run of tiles, the slice's groups, and of each group the run's tiles.
struct Feed {
  Share share;
  int count, group, blocks, bytes;
  u32 sources, source, past, ahead;  // where the run's tiles lie, 8 bytes each, in shared memory; the next one's, and their end

  METHOD Feed(const Share& share, const Parts& parts, const Product& p, int slice, u32 sources) : share(share), blocks(p.blocks), sources(held(sources)) {
    if (slice * GROUP_BLOCKS >= blocks) this->share.first = share.past;
    open(parts, p, slice);
  }

  METHOD void open(const Parts& parts, const Product& p, int slice) {
    count = share.count(), group = slice, ahead = 0, source = sources, past = sources + 8 * count;
    begin(parts, p);
  }

  // Find where the group's tiles lie: once a run, and for a short group anew.
  METHOD void begin(const Parts& parts, const Product& p) {
    const int lane = threadIdx.x & 31;
    __syncwarp();
    bytes = group_bytes(min(GROUP_BLOCKS, blocks - group * GROUP_BLOCKS));
    if (lane < count) {
      const Unit at = p.whole_at(share.first + lane);
      put_shared(sources + 8 * lane, (u64)(parts.part[at.part].weights + group_offset(at.tile, group, blocks) - ahead));
    }
    __syncwarp();
  }

  METHOD void fill(const Place& to, const Parts& parts, const Product& p, int slice) {
    if (share.first >= share.past) return;
    const u8* from = (const u8*)shared_at<u64>(source) + ahead;
    if (is_elected()) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(to.barrier()), "r"(bytes) : "memory");
      copy_run(to.at, from, bytes, to.barrier(), GOES_FIRST);
    }
    source += 8;
    if (source != past) return;
    source = sources, group += SLICES, ahead += RUN_BYTES;
    if (group * GROUP_BLOCKS + GROUP_BLOCKS <= blocks) return;
    if (group * GROUP_BLOCKS < blocks) return begin(parts, p);
    share.pass();
    open(parts, p, slice);
  }
};

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

  METHOD Rows(const Rows& first, const Rows& second, bool is_first)
      : planes(is_first ? first.planes : second.planes), sums(is_first ? first.sums : second.sums), has_row(first.has_row), has_sums(first.has_sums) {}

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

  METHOD void advance() {
    planes += SLICES * GROUP_BLOCKS * BLOCK_PLANES;
    sums += SLICES * GROUP_BLOCKS * BLOCK_SUMS;
  }
};

// acc += a tile's whole group. Of a group's last tile: x has the activations of the next whole group then, those of `next`.
DEVICE void fold_group(float (&acc)[1][1][4], const u8* slot, Columns (&x)[GROUP_BLOCKS], u32 offset, bool is_last, const Rows& next) {
  const int lane = threadIdx.x & 31;
  const Head head(slot, lane >> 2);
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q += ABREAST) {
    Record w[ABREAST];
    UNROLL for (int i = 0; i < ABREAST; i++) w[i].load(head, slot, q + i, lane, offset);
    fold_abreast(acc[0][0], w, x, q);
    if (is_last)
      UNROLL for (int i = 0; i < ABREAST; i++) next.fetch(x[q + i], q + i);
  }
}

// The same of a short group, the last of a row.
DEVICE void fold_short(float (&acc)[1][1][4], const u8* slot, int count, u32 offset, const Rows& rows) {
  const int lane = threadIdx.x & 31;
  ROLLED for (int q = 0; q < count; q++) {
    Record w[1];
    w[0].load(Head(slot, lane >> 2), slot, q, lane, offset);
    Columns x[1] = {};
    rows.fetch(x[0], q);
    fold_blocks(acc, 0, w, x);
  }
}

// A warp folds the slices of one tile and puts its outputs. `down` is [slice][row of 8].
DEVICE void fold_tile(const Kept* sums, const float* down, const Parts& parts, const Product& p, int tile, const int* logits_slots) {
  const int lane = threadIdx.x & 31, row = (SPREAD ? 1 : 2) * (lane & 3);
  float y[4] = {};
  UNROLL for (int s = 0; s < SLICES; s++) {
    const Kept sum = sums[s * 32 + lane];
    const float* own = down + 8 * s + row;
#if SPREAD
    y[0] = fmaf(sum.x, own[0], y[0]);
    y[2] = fmaf(sum.y, own[0], y[2]);
#else
    y[0] = fmaf(sum.x, own[0], y[0]);
    y[1] = fmaf(sum.y, own[1], y[1]);
    y[2] = fmaf(sum.z, own[0], y[2]);
    y[3] = fmaf(sum.w, own[1], y[3]);
#endif
  }
  const Unit at = p.whole_at(tile);
  const Part& part = parts.part[at.part];
  UNROLL for (int j = 0; j < 4; j += SPREAD ? 2 : 1) {
    const int output = at.tile * 16 + (lane >> 2) + (j & 2) * 4, own = row + (j & 1);
    if (own < p.rows && output < part.outputs) put_output(part, logits_slots == nullptr ? own : logits_slots[own], output, y[j]);
  }
}

DEVICE void meet(int team) { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * SLICES) : "memory"); }

DEVICE void take(float (&acc)[4], const Kept& kept) {
#if SPREAD
  acc[0] = kept.x, acc[2] = kept.y;
#else
  acc[0] = kept.x, acc[1] = kept.y, acc[2] = kept.z, acc[3] = kept.w;
#endif
}

DEVICE void keep(Kept& kept, const float (&acc)[4]) {
#if SPREAD
  kept = make_float2(acc[0], acc[2]);
#else
  kept = make_float4(acc[0], acc[1], acc[2], acc[3]);
#endif
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2 / TEAMS)
matmul_thin(const __grid_constant__ Parts parts, u8* activation, int blocks, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ float down[TEAMS][SLICES * 8];
  __shared__ u64 sources[WARPS][MOST_TILES];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, team = warp / SLICES, slice = warp % SLICES;
  Kept* sums = (Kept*)(shared + WARPS * STAGES * SLOT_STRIDE) + team * (MOST_TILES * TILE_SUMS);
  Kept* own_sums = sums + slice * 32 + lane;
  Product p(parts, blocks, 0);
  let_next_start();
  Place ring(shared_address(shared) + warp * (STAGES * SLOT_STRIDE));
  if (is_elected())
    for (int slot = 0; slot < STAGES; slot++) set_barrier(ring.first + slot * SLOT_STRIDE + SLOT_BYTES, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  Share share(p.starts[3]);
  Feed feed(share, parts, p, slice, shared_address(sources[warp]));
  ROLLED for (int stage = 0; stage < STAGES; stage++, ring.pass()) feed.fill(ring, parts, p, slice);
  ring = Place(ring.first);
  const Activation a = activation_at(activation, blocks, COLUMNS);
  const int* logits_slots = domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr;
  const u32 offset = code_offset(parts.part[0].zero);
  const int own = threadIdx.x % (32 * SLICES);
  // The first round is a rehearsal while the kernel ahead runs: one group of one tile, of no rows, so that the code is at hand when it ends.
  ROLLED for (u32 is_played = held(!REHEARSED); ; is_played = held(1)) {
    if (is_played) p.rows = step[domain], await_previous();
    const Rows start(a, slice, p.rows);
    Columns x[GROUP_BLOCKS] = {};
    const int most = is_played ? blocks - slice * GROUP_BLOCKS : GROUP_BLOCKS;
    if (most >= GROUP_BLOCKS)
      UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) start.fetch(x[q], q);
    if (is_played && own < SLICES * 8) down[team][own] = a.scales[own / 8 * COLUMNS + own % 8];
    do {
      const int count = is_played ? share.count() : 1;
      ROLLED for (int r = 0; r < count; r++) own_sums[r * TILE_SUMS] = Kept();
      Rows rows = start;
      for (int left = most; left > 0; left -= SLICES * GROUP_BLOCKS) {
        Kept* const last = own_sums + (count - 1) * TILE_SUMS;
        Rows ahead = rows;
        ahead.advance();
        const Rows next(ahead, start, left >= (SLICES + 1) * GROUP_BLOCKS);
        for (Kept* kept = own_sums; kept <= last; kept += TILE_SUMS) {
          float acc[1][1][4] = {};
          take(acc[0][0], *kept);
          if (is_played) wait_barrier(ring.barrier(), ring.phase);
          const u8* slot = shared + (ring.at - shared_address(shared));
          if (left >= GROUP_BLOCKS) fold_group(acc, slot, x, offset, kept == last, next);
          else fold_short(acc, slot, left, offset, rows);
          keep(*kept, acc[0][0]);
          __syncwarp();
          if (is_played) feed.fill(ring, parts, p, slice), ring.pass();
        }
        rows = ahead;
      }
      meet(team);
      ROLLED for (int r = slice; r < count; r += SLICES) fold_tile(sums + r * TILE_SUMS, down[team], parts, p, share.first + r, logits_slots);
      meet(team);  // before the sums are begun anew
      if (is_played) share.pass();
    } while (is_played && share.first < share.past);
    if (is_played) break;
  }
}
