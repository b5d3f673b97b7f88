// out = W x (+ bias): 8 warps a block, warp s sums slice s of K for ROW_TILES x 16 outputs and TILES x 8 rows; the slices then fold in order,
// y = fma(acc, 2^-e, y). A warp copies its own weights through its own ring, so warps meet only when slices fold. Blocks take units
// (outputs, rows) in turn; weights of the first units are on their way before the kernel ahead has ended.
// SPREAD: up to 4 rows, row r in the tensor core's column 2r, so that a lane has one column's sums instead of two.
#ifndef BLOCKS
#define BLOCKS (TILES == 1 ? 2 : 1)
#endif
#define UNIT_OUTPUTS (16 * ROW_TILES)
#include "fold.cuh"
#include "parts.cuh"
#include "ring.cuh"
#include "step.cuh"

#define PAIRS (ROW_TILES / 2)
#define GROUP_BYTES (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES)
#define PAIR_BYTES (2 * GROUP_BYTES)
#define STAGE_BYTES (PAIRS * PAIR_BYTES)
#define ABREAST (TILES % 2 ? 1 : 2)
#define HALVES (ROW_TILES == 2 && TILES == 1)  // units are dealt out in halves where they do not come out even
#if SPREAD
typedef float2 Kept;  // of one row, outputs g and g + 8
#else
typedef float4 Kept;
#endif

typedef Ring<32, STAGES, STAGE_BYTES> WeightRing;

// What a block takes at once: a unit, or one of its two tiles.
struct Job {
  int unit, first, tiles;
};

// Units as long as every block gets one more; then their halves, so that no block is left with a unit while others have none. Blocks take every
// gridDim.x-th job.
struct Deal {
  int whole, jobs;

  METHOD Deal(int units) : whole(HALVES ? units - units % gridDim.x : units), jobs(2 * units - whole) {}
  METHOD Job at(int job) const {
    const int half = job - whole;
    return half < 0 ? Job{job, 0, ROW_TILES} : Job{whole + half / 2, half % 2, 1};
  }
};

// Walks a warp's share of the weights: groups slice, slice + 8, ... of each job's outputs, job by job.
struct Feed {
  int job, visit, visits, slice, tiles;
  bool is_odd;  // a half, the second of its unit
  const u8* source[PAIRS];

  METHOD void open(const Parts& parts, const Product& p, const Deal& deal) {
    const Job next = deal.at(job);
    const Unit at = p.at(next.unit);
    const Part& part = parts.part[at.part];
    tiles = next.tiles, is_odd = next.first == 1;
    UNROLL for (int pair = 0; pair < PAIRS; pair++) {
      const int tile = at.tile + next.first + 2 * pair;
      source[pair] = tile * 16 < part.outputs ? part.weights + group_offset(tile, slice, p.blocks) : nullptr;
    }
  }

  METHOD void next(WeightRing& ring, const Parts& parts, const Product& p, const Deal& deal) {
    if (visits > 0 && job < deal.jobs) {
      const int group = group_bytes(min(GROUP_BLOCKS, p.blocks - (slice + SLICES * visit) * GROUP_BLOCKS));
      if (visit == 0) open(parts, p, deal);
      else if (HALVES && is_odd) source[0] -= GROUP_BYTES - group;  // in a short group the second tile stands behind a short first
      const int bytes = HALVES && tiles == 1 ? group : 2 * group;
      ring.expect(source[0] == nullptr ? 0 : source[PAIRS - 1] != nullptr ? PAIRS * bytes : bytes);
      UNROLL for (int pair = 0; pair < PAIRS; pair++)
        if (source[pair] != nullptr) {
          ring.copy(pair * PAIR_BYTES, source[pair], bytes, GOES_FIRST);
          source[pair] += SLICES * PAIR_BYTES;
        }
      if (++visit == visits) visit = 0, job += gridDim.x;
    }
    ring.filled();
  }
};

// The activations of a warp's blocks, group by group of its slice: addresses move on by what one block and one visit take.
struct Rows {
  const u8* planes;
  const float* sums;
  u32 block_bytes, block_sums;
  bool is_live[TILES], has_sums[TILES];  // a lane's row, and the first of the two whose sums it holds

  METHOD Rows(const Activation& a, int slice, int row_tile, int rows) {
    const int lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2, column = SPREAD ? t : row_tile * 8 + 2 * t;
    block_bytes = a.columns / 8 * (PLANES * FRAGMENT_BYTES);
    block_sums = 2 * a.columns;
    planes = fragments_at(a, slice * GROUP_BLOCKS, row_tile) + (SPREAD ? g / 2 * 4 + t : lane) * 16;
    sums = a.sums + (size_t)slice * GROUP_BLOCKS * block_sums + 2 * column;
    UNROLL for (int n = 0; n < TILES; n++) is_live[n] = SPREAD ? g % 2 == 0 && g / 2 < rows : (row_tile + n) * 8 + g < rows, has_sums[n] = column + 8 * n < rows;
  }

  // The next group, of which `left` blocks are there.
  METHOD void fetch(Columns (&x)[GROUP_BLOCKS][TILES], int left) {
    UNROLL for (int q = 0; q < GROUP_BLOCKS; q++)
      UNROLL for (int n = 0; n < TILES; n++) {
        const u8* from = planes + q * block_bytes + n * (PLANES * FRAGMENT_BYTES);
        UNROLL for (int plane = 0; plane < PLANES; plane++)
          x[q][n].planes[plane] = q < left && is_live[n] ? *(const uint4*)(from + plane * FRAGMENT_BYTES) : make_uint4(0, 0, 0, 0);
#if HAS_MINIMUM && SPREAD
        const float2 pair = q < left && has_sums[n] ? *(const float2*)(sums + q * block_sums) : make_float2(0.f, 0.f);
        x[q][n].sums = make_float4(pair.x, pair.y, pair.x, pair.y);
#elif HAS_MINIMUM
        x[q][n].sums = q < left && has_sums[n] ? *(const float4*)(sums + q * block_sums + 16 * n) : make_float4(0.f, 0.f, 0.f, 0.f);
#endif
      }
    planes += SLICES * GROUP_BLOCKS * block_bytes;
    sums += SLICES * GROUP_BLOCKS * block_sums;
  }
};

// A slice's sums as they wait to be folded, and y = fma(sum, 2^-e, y) of them.
DEVICE void keep(Kept& kept, const float (&acc)[4]) {
#if SPREAD
  kept = make_float2(acc[0], acc[2]);
#else
  kept = make_float4(acc[0], acc[1], acc[2], acc[3]);
#endif
}

DEVICE void fold_slice(float (&y)[4], const Kept& kept, const float* scales) {
#if SPREAD
  const float down = *scales;
  y[0] = fmaf(kept.x, down, y[0]);
  y[2] = fmaf(kept.y, down, y[2]);
#else
  const float2 down = *(const float2*)scales;
  y[0] = fmaf(kept.x, down.x, y[0]);
  y[1] = fmaf(kept.y, down.y, y[1]);
  y[2] = fmaf(kept.z, down.x, y[2]);
  y[3] = fmaf(kept.w, down.y, y[3]);
#endif
}

// acc += the first `count` blocks of a group of some tiles, which lies in `stage`.
template <int tiles, bool is_whole> DEVICE void fold_group(float (&acc)[ROW_TILES][TILES][4], const Columns (&x)[GROUP_BLOCKS][TILES], const u8* stage, int count, u32 offset) {
  const int lane = threadIdx.x & 31;
  const u8* groups_of[tiles];
  Head heads[tiles];
  UNROLL for (int r = 0; r < tiles; r++) groups_of[r] = stage + r / 2 * PAIR_BYTES + r % 2 * group_bytes(is_whole ? GROUP_BLOCKS : count), heads[r] = Head(groups_of[r], lane >> 2);
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    if (!is_whole && q >= count) break;
    Record w[tiles];
    UNROLL for (int r = 0; r < tiles; r++) w[r].load(heads[r], groups_of[r], q, lane, offset);
    UNROLL for (int n = 0; n < TILES; n += ABREAST) {
      Columns some[ABREAST];
      UNROLL for (int i = 0; i < ABREAST; i++) some[i] = x[q][n + i];
      fold_blocks(acc, n, w, some);
    }
  }
}

// acc += a warp's groups of a job.
template <int tiles> DEVICE void take_groups(float (&acc)[ROW_TILES][TILES][4], Rows& from, const u8* slots, WeightRing& ring, Feed& feed, const Parts& parts,
                                             const Product& p, const Deal& deal, u32 offset) {
  for (int visit = 0; visit < feed.visits; visit++) {
    const int left = p.blocks - (feed.slice + SLICES * visit) * GROUP_BLOCKS, count = min(GROUP_BLOCKS, left);
    Columns x[GROUP_BLOCKS][TILES];
    from.fetch(x, left);
    ring.wait();
    __syncwarp();
    feed.next(ring, parts, p, deal);
    const u8* stage = slots + ring.take();
    if (TILES == 1 && count == GROUP_BLOCKS) fold_group<tiles, true>(acc, x, stage, count, offset);
    else fold_group<tiles, false>(acc, x, stage, count, offset);
  }
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
matmul(const __grid_constant__ Parts parts, u8* activation, int blocks, int columns, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[SLICES][STAGES];
  Kept* both_sums = (Kept*)(shared + SLICES * STAGES * STAGE_BYTES);
  const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5;
  const int groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS, visits = groups > slice ? (groups - slice + SLICES - 1) / SLICES : 0;
  const Product p(parts, blocks, step[domain]);
  const Deal deal(p.units());
  let_next_start();
  const u8* slots = shared + slice * STAGES * STAGE_BYTES;
  WeightRing ring(slots, barriers[slice], lane);
  __syncwarp();
  Feed feed = {(int)blockIdx.x, 0, visits, slice};
  for (int stage = 0; stage < STAGES - 1; stage++) feed.next(ring, parts, p, deal);
  await_previous();

  const Activation a = activation_at(activation, blocks, columns);
  const int* logits_slots = row_array(step, WANTED_SLOTS);
  int turn = 0;
  for (int index = blockIdx.x; index < deal.jobs; index += gridDim.x, turn++) {
    const Job job = deal.at(index);
    const Unit at = p.at(job.unit);
    const Part& part = parts.part[at.part];
    const u32 offset = code_offset(part.zero);
    Rows from(a, slice, at.row_tile, p.rows);
    float acc[ROW_TILES][TILES][4] = {};
    if (HALVES && job.tiles == 1) take_groups<HALVES ? 1 : ROW_TILES>(acc, from, slots, ring, feed, parts, p, deal, offset);
    else take_groups<ROW_TILES>(acc, from, slots, ring, feed, parts, p, deal, offset);
    Kept* sums = both_sums + turn % 2 * (SLICES * ROW_TILES * TILES * 32);  // the last job's may still be read
    UNROLL for (int r = 0; r < ROW_TILES; r++)
      UNROLL for (int n = 0; n < TILES; n++) keep(sums[((slice * ROW_TILES + r) * TILES + n) * 32 + lane], acc[r][n]);
    __syncthreads();
    // Warps take turns to fold: the others go on.
    for (int i = (threadIdx.x - turn * (ROW_TILES * TILES * 32)) % 256u; i < job.tiles * TILES * 32; i += 256) {
      const int l = i & 31, r = i / 32 / TILES, n = i / 32 % TILES, output = (at.tile + job.first + r) * 16 + (l >> 2);
      const int column = SPREAD ? l & 3 : (at.row_tile + n) * 8 + 2 * (l & 3);
      float y[4] = {};
      UNROLL for (int s = 0; s < SLICES; s++) fold_slice(y, sums[s * ROW_TILES * TILES * 32 + i], a.scales + s * columns + column);
      UNROLL for (int j = 0; j < 4; j += SPREAD ? 2 : 1) {
        const int row = column + (j & 1), o = output + (j & 2) * 4;
        if (row < p.rows && o < part.outputs) put_output(part, domain == WANTED ? logits_slots[row] : row, o, y[j]);
      }
    }
  }
}
