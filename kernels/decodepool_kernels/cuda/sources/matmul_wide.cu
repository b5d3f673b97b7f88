// The product of many rows: 8 warps a block, each with 32 of its 256 outputs and all of its 8 TILES rows, which pass
// through shared memory with the weights. A warp sums slice after slice, so its bits are those of matmul. Where a product has few
// outputs a unit is one slice only (SPLIT): its sums go to `partials` [slice][row][width], for who takes them or
// fold_slices.
#define UNIT_OUTPUTS 256
#include "fold.cuh"
#include "parts.cuh"
#include "ring.cuh"
#include "step.cuh"

#define WARP_TILES 2
#define ABREAST 2
#define PAIR_BYTES (WARP_TILES * (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES))
#define WEIGHT_BYTES (UNIT_OUTPUTS / 32 * PAIR_BYTES)
#define COLUMN_BYTES (TILES * PLANES * FRAGMENT_BYTES)
#define STAGE_BYTES (WEIGHT_BYTES + GROUP_BLOCKS * COLUMN_BYTES)

typedef Ring<32, STAGES, STAGE_BYTES> BlockRing;

// Walks the groups of 4 blocks of a block's units: unit by unit, slice by slice, in each its groups in order.
struct Feed {
  int unit, slice, group, groups, units;

  METHOD Feed(int blocks, int units) : unit(blockIdx.x), groups((blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS), units(units) {
    slice = group = SPLIT ? unit % SLICES : 0;
    settle();
  }

  // Past the last group of a slice comes the next slice, past a unit's last slice the next unit.
  METHOD void settle() {
    while (unit < units && group >= groups) {
      if (!SPLIT && slice + 1 < SLICES) {
        group = ++slice;
      } else {
        unit += gridDim.x;
        slice = group = SPLIT ? unit % SLICES : 0;
      }
    }
  }

  METHOD void next(BlockRing& ring, const Parts& parts, const Product& p, const Activation& a) {
    if (unit < units) {
      const Unit at = p.at(SPLIT ? unit / SLICES : unit);
      const Part& part = parts.part[at.part];
      const int warp = threadIdx.x >> 5, first = group * GROUP_BLOCKS, count = min(GROUP_BLOCKS, p.blocks - first);
      const int tile = at.tile + warp * WARP_TILES, pairs = min(UNIT_OUTPUTS / 32, (part.outputs + 31) / 32 - at.tile / 2);
      ring.expect(pairs * WARP_TILES * group_bytes(count) + count * COLUMN_BYTES);
      if (tile * 16 < part.outputs)
        ring.copy(warp * PAIR_BYTES, part.weights + group_offset(tile, group, p.blocks), WARP_TILES * group_bytes(count),
                  p.column_groups() > 1 ? STAYS : GOES_FIRST);
      if (warp < count) ring.copy(WEIGHT_BYTES + warp * COLUMN_BYTES, fragments_at(a, first + warp, at.row_tile), COLUMN_BYTES, STAYS);
      group += SLICES;
      settle();
    }
    ring.filled();
  }
};

DEVICE void read_columns(Columns& x, const u8* columns, const Activation& a, int block, int n, int row_tile) {
  const int lane = threadIdx.x & 31;
  UNROLL for (int plane = 0; plane < PLANES; plane++)
    x.planes[plane] = *(const uint4*)(columns + (n * PLANES + plane) * FRAGMENT_BYTES + lane * 16);
#if SUMS == 1
  x.sums = *(const float4*)block_sums_at(a, block, (row_tile + n) * 8 + 2 * (lane & 3));
#endif
}

// A thread's warp, and what it holds of a tile of sums: outputs g and g + 8 of rows 2 t and 2 t + 1.
struct Own {
  int warp, g, t;
};

// What a warp's outputs of a unit come to; or a slice's sums, to their place in `apart`, a row `width` behind the last.
DEVICE void put_unit(const float (&y)[WARP_TILES][TILES][4], const Own& own, const Unit& at, const Part& part, int rows, const int* logits_slots, int domain,
                     float* apart, int width) {
  UNROLL for (int r = 0; r < WARP_TILES; r++)
    UNROLL for (int n = 0; n < TILES; n++)
      UNROLL for (int j = 0; j < 4; j++) {
        const int row = (at.row_tile + n) * 8 + 2 * own.t + (j & 1), local = (own.warp * WARP_TILES + r) * 16 + own.g + (j & 2) * 4;
        const int output = at.tile * 16 + local;
        if (row >= rows || output >= part.outputs) continue;
        if (SPLIT) apart[(i64)row * width + local] = y[r][n][j];
        else put_output(part, domain == WANTED ? logits_slots[row] : row, output, y[r][n][j]);
      }
}

extern "C" __global__ void __launch_bounds__(256, 1)
matmul_wide(const __grid_constant__ Parts parts, u8* activation, int blocks, int columns, const int* step, int domain, float* partials, int width) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[STAGES];
  let_next_start();
  await_previous();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const Product p(parts, blocks, step[domain]);
  const Activation a = activation_at(activation, blocks, columns);
  const int *logits_slots = row_array(step, WANTED_SLOTS), units = p.units() * (SPLIT ? SLICES : 1);
  BlockRing ring(shared, barriers, threadIdx.x);
  __syncthreads();
  Feed feed(blocks, units);
  for (int stage = 0; stage < STAGES - 1; stage++) feed.next(ring, parts, p, a);

  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int place = SPLIT ? unit / SLICES : unit;
    const Unit at = p.at(place);
    const Part& part = parts.part[at.part];
    const u32 offset = code_offset(part.zero);
    const int first_slice = SPLIT ? unit % SLICES : 0;
    float y[WARP_TILES][TILES][4] = {};
    for (int slice = first_slice; slice < (SPLIT ? first_slice + 1 : SLICES); slice++) {
      float acc[WARP_TILES][TILES][4] = {};
      for (int group = slice; group < feed.groups; group += SLICES) {
        const int first = group * GROUP_BLOCKS, count = min(GROUP_BLOCKS, blocks - first);
        ring.wait();
        __syncthreads();
        feed.next(ring, parts, p, a);
        const u8* stage = shared + ring.take();
        const u8* groups_of[WARP_TILES];
        Head heads[WARP_TILES];
        UNROLL for (int r = 0; r < WARP_TILES; r++) groups_of[r] = stage + warp * PAIR_BYTES + r * group_bytes(count), heads[r] = Head(groups_of[r], g);
        float chains[WARP_TILES][TILES][4] = {};  // of the group, where its blocks are chained
        for (int q = 0; q < count; q++) {
          Record w[WARP_TILES];
          UNROLL for (int r = 0; r < WARP_TILES; r++) w[r].load(heads[r], groups_of[r], q, lane, offset);
          UNROLL for (int n = 0; n < TILES; n += ABREAST) {
            Columns x[ABREAST];
            UNROLL for (int i = 0; i < ABREAST; i++)
              read_columns(x[i], stage + WEIGHT_BYTES + q * COLUMN_BYTES, a, first + q, n + i, at.row_tile);
            fold_blocks(GROUP_CHAINS ? chains : acc, n, w, x);
          }
        }
        UNROLL for (int n = 0; n < TILES; n++) end_group(acc, n, chains, heads, GroupSums(group_sums_at(a, group, at.row_tile + n)));
      }
      UNROLL for (int n = 0; n < TILES; n++) {
        const int column = (at.row_tile + n) * 8 + 2 * t;
        const float2 down = *(const float2*)(a.scales + slice * columns + column);
        UNROLL for (int r = 0; r < WARP_TILES; r++)
          UNROLL for (int j = 0; j < 4; j++)
            y[r][n][j] = SPLIT ? acc[r][n][j] : fmaf(acc[r][n][j], j & 1 ? down.y : down.x, y[r][n][j]);
      }
    }
    float* apart = partials + (i64)first_slice * p.rows * width + (i64)(place / p.column_groups()) * UNIT_OUTPUTS;
    put_unit(y, {warp, g, t}, at, part, p.rows, logits_slots, domain, apart, width);
  }
}
