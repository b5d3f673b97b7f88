// out = W x (+ bias): 8 warps a block, warp s sums slice s of K for ROW_TILES x 16 outputs and TILES x 8 rows; the slices then fold in order,
// y = fma(acc, 2^-e, y). A warp copies its own weights through its own ring, so warps meet only when slices fold. Blocks take units
// (outputs, rows) in turn; weights of the first units are on their way before the kernel ahead has ended.
#define UNIT_OUTPUTS (16 * ROW_TILES)
#include "fold.cuh"
#include "parts.cuh"
#include "ring.cuh"
#include "step.cuh"

#define PAIRS ((ROW_TILES + 1) / 2)
#define PAIR_TILES (ROW_TILES > 1 ? 2 : 1)  // of a pair that a unit takes
#define TILE_BYTES (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES)
#define STAGE_BYTES (ROW_TILES * TILE_BYTES)
#define ABREAST (TILES % 2 ? 1 : 2)

typedef Ring<32, STAGES, STAGE_BYTES> WeightRing;

// Walks a warp's share of the weights: groups slice, slice + 8, ... of each unit's outputs, unit by unit.
struct Feed {
  int unit, visit, visits, slice;
  const u8* source[PAIRS];
  int place;  // of the first tile in its pair

  METHOD void open(const Parts& parts, const Product& p) {
    const Unit at = p.at(unit);
    const Part& part = parts.part[at.part];
    UNROLL for (int pair = 0; pair < PAIRS; pair++) {
      const int tile = at.tile + 2 * pair;
      source[pair] = tile * 16 < part.outputs ? part.weights + group_offset(tile & ~1, slice, p.blocks) : nullptr;
    }
    place = at.tile % (2 / PAIR_TILES);
  }

  METHOD void next(WeightRing& ring, const Parts& parts, const Product& p) {
    if (visits > 0 && unit < p.units()) {
      if (visit == 0) open(parts, p);
      const int tile_bytes = group_bytes(min(GROUP_BLOCKS, p.blocks - (slice + SLICES * visit) * GROUP_BLOCKS)), bytes = PAIR_TILES * tile_bytes;
      ring.expect(source[PAIRS - 1] != nullptr ? PAIRS * bytes : bytes);
      UNROLL for (int pair = 0; pair < PAIRS; pair++)
        if (source[pair] != nullptr) {
          ring.copy(pair * 2 * TILE_BYTES, source[pair] + place * tile_bytes, bytes, GOES_FIRST);
          source[pair] += SLICES * 2 * TILE_BYTES;
        }
      if (++visit == visits) visit = 0, unit += gridDim.x;
    }
    ring.filled();
  }
};

// The activations of a warp's blocks, group by group of its slice: addresses move on by what one block and one visit take.
struct Rows {
  const u8 *planes, *sums;
  u32 block_bytes, plane_bytes, block_sums;
  bool is_live[TILES], has_sums[TILES];  // a lane's row, and the first of the two whose sums it holds

  METHOD Rows(const Activation& a, int slice, int row_tile, int rows) {
    const int lane = threadIdx.x & 31, column = row_tile * 8 + 2 * (lane & 3);
    block_bytes = a.columns * (PLANES * ROW_BYTES);
    plane_bytes = a.plane_bytes();
    block_sums = 8 * (SUMS == 2 ? 8 * a.row_tiles() : a.columns);  // bytes
    planes = fragments_at(a, slice * GROUP_BLOCKS, row_tile) + lane * 16;
    sums = SUMS == 2 ? group_sums_at(a, slice, row_tile) : (u8*)block_sums_at(a, slice * GROUP_BLOCKS, column);
    UNROLL for (int n = 0; n < TILES; n++) is_live[n] = (row_tile + n) * 8 + (lane >> 2) < rows, has_sums[n] = column + 8 * n < rows;
  }

  // The next group, of which `left` blocks are there.
  METHOD void fetch(Columns (&x)[GROUP_BLOCKS][TILES], GroupSums (&of_group)[TILES], int left) {
    UNROLL for (int q = 0; q < GROUP_BLOCKS; q++)
      UNROLL for (int n = 0; n < TILES; n++) {
        const u8* from = planes + q * block_bytes + n * (PLANES * FRAGMENT_BYTES);
        UNROLL for (int plane = 0; plane < PLANES; plane++)
          x[q][n].planes[plane] = q < left && is_live[n] ? *(const uint4*)(from + plane * plane_bytes) : make_uint4(0, 0, 0, 0);
#if SUMS == 1
        x[q][n].sums = q < left && has_sums[n] ? *(const float4*)(sums + q * block_sums + 64 * n) : make_float4(0.f, 0.f, 0.f, 0.f);
#endif
      }
    UNROLL for (int n = 0; n < TILES; n++) of_group[n] = GroupSums(sums + n * GROUP_SUM_BYTES);
    planes += SLICES * GROUP_BLOCKS * block_bytes;
    sums += SLICES * GROUP_BLOCKS * block_sums;
  }
};

// A warp's sums of a unit, to where all slices' meet: [slice][tile][8 rows][lane].
DEVICE void leave_sums(float4* sums, const float (&acc)[ROW_TILES][TILES][4], int slice) {
  UNROLL for (int r = 0; r < ROW_TILES; r++)
    UNROLL for (int n = 0; n < TILES; n++)
      sums[((slice * ROW_TILES + r) * TILES + n) * 32 + (threadIdx.x & 31)] = make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]);
}

// What place i of a unit's sums, of rows from `column` on, comes to.
DEVICE float4 fold(const float4* sums, const Activation& a, int i, int column) {
  float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
  UNROLL for (int s = 0; s < SLICES; s++) {
    const float4 sum = sums[s * ROW_TILES * TILES * 32 + i];
    const float2 down = *(const float2*)(a.scales + s * a.columns + column);
    y = make_float4(fmaf(sum.x, down.x, y.x), fmaf(sum.y, down.y, y.y), fmaf(sum.z, down.x, y.z), fmaf(sum.w, down.y, y.w));
  }
  return y;
}

// By all warps: what a unit's sums come to.
DEVICE void put_unit(const float4* sums, const Activation& a, const Unit& at, const Part& part, int rows, const int* logits_slots, int domain) {
  for (int i = threadIdx.x; i < ROW_TILES * TILES * 32; i += 256) {
    const int l = i & 31, r = i / 32 / TILES, n = i / 32 % TILES, column = (at.row_tile + n) * 8 + 2 * (l & 3), output = (at.tile + r) * 16 + (l >> 2);
    const float4 y = fold(sums, a, i, column);
    const float values[4] = {y.x, y.y, y.z, y.w};
    UNROLL for (int j = 0; j < 4; j++) {
      const int row = column + (j & 1), o = output + (j & 2) * 4;
      if (row < rows && o < part.outputs) put_output(part, domain == WANTED ? logits_slots[row] : row, o, values[j]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, TILES == 1 ? 2 : 1)
matmul(const __grid_constant__ Parts parts, u8* activation, int blocks, int columns, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[SLICES][STAGES];
  float4* both_sums = (float4*)(shared + SLICES * STAGES * STAGE_BYTES);
  const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5;
  const int groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS, visits = groups > slice ? (groups - slice + SLICES - 1) / SLICES : 0;
  const Product p(parts, blocks, step[domain]);
  let_next_start();
  const u8* slots = shared + slice * STAGES * STAGE_BYTES;
  WeightRing ring(slots, barriers[slice], lane);
  __syncwarp();
  Feed feed = {(int)blockIdx.x, 0, visits, slice};
  for (int stage = 0; stage < STAGES - 1; stage++) feed.next(ring, parts, p);
  await_previous();

  const Activation a = activation_at(activation, blocks, columns);
  const int* logits_slots = row_array(step, WANTED_SLOTS);
  int odd = 0;
  for (int unit = blockIdx.x; unit < p.units(); unit += gridDim.x) {
    const Unit at = p.at(unit);
    const Part& part = parts.part[at.part];
    const u32 offset = code_offset(part.zero);
    Rows from(a, slice, at.row_tile, p.rows);
    float acc[ROW_TILES][TILES][4] = {};
    for (int visit = 0; visit < visits; visit++) {
      const int first = (slice + SLICES * visit) * GROUP_BLOCKS, count = min(GROUP_BLOCKS, blocks - first);
      Columns x[GROUP_BLOCKS][TILES];
      GroupSums of_group[TILES];
      from.fetch(x, of_group, blocks - first);
      ring.wait();
      __syncwarp();
      feed.next(ring, parts, p);
      const u8* stage = slots + ring.take();
      const u8* groups_of[ROW_TILES];
      Head heads[ROW_TILES];
      UNROLL for (int r = 0; r < ROW_TILES; r++) groups_of[r] = stage + r / 2 * (2 * TILE_BYTES) + r % 2 * group_bytes(count), heads[r] = Head(groups_of[r], lane >> 2);
      float chains[ROW_TILES][TILES][4] = {};  // of the group, where its blocks are chained
      UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
        if (q >= count) break;
        Record w[ROW_TILES];
        UNROLL for (int r = 0; r < ROW_TILES; r++) w[r].load(heads[r], groups_of[r], q, lane, offset);
        UNROLL for (int n = 0; n < TILES; n += ABREAST) {
          Columns some[ABREAST];
          UNROLL for (int i = 0; i < ABREAST; i++) some[i] = x[q][n + i];
          fold_blocks(GROUP_CHAINS ? chains : acc, n, w, some);
        }
      }
      UNROLL for (int n = 0; n < TILES; n++) end_group(acc, n, chains, heads, of_group[n]);
    }
    float4* sums = both_sums + odd * (SLICES * ROW_TILES * TILES * 32);  // the last unit's may still be read
    odd ^= 1;
    leave_sums(sums, acc, slice);
    __syncthreads();
    put_unit(sums, a, at, part, p.rows, logits_slots, domain);
  }
}
