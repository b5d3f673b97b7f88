// out = W x (+ bias) of up to 16 rows on sm_90. A cluster of CLUSTER blocks takes units of 16 UNIT_TILES outputs x 8 TILES rows, a block 8 / CLUSTER
// slices of K: what a unit reads of the activations comes to one block, once, and is shared by SLICE_WARPS warps. Each slice has a ring of its own;
// one warp fills them all with weights, another with activations but for the first group, which the slice's own warps ask for; weights are on their
// way before the kernel ahead has ended. Where there is room for all of a slice's activations (HELD_GROUPS) they come once for all units and stay.
// Sums go to the block of the cluster that owns their outputs, where warps of their own fold the slices in order, y = fma(acc, 2^-e, y).
//
// LEADS: the product behind takes the same activations on the clusters that this one leaves, so it may start as soon as every block has waited for them.
// BESIDE: this is that product: its activations are in the L2, where they are read, and it waits for the product ahead at its end.
#define UNIT_OUTPUTS (16 * UNIT_TILES)
#include "cluster.cuh"
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"

#define OWN_SLICES (SLICES / CLUSTER)
#define SLICE_WARPS (UNIT_TILES / ROW_TILES)
#define WARPS (OWN_SLICES * SLICE_WARPS)
#define PAIRS (UNIT_TILES / 2)
#define PAIR_BYTES (2 * (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES))
#define WEIGHT_BYTES (PAIRS * PAIR_BYTES)
// Of a block of activations.
#define PLANE_BYTES (HELD_ROWS * ROW_BYTES)  // of 8 rows
#define PLANES_BYTES (TILES * PLANES * PLANE_BYTES)
#define SUMS_BYTES (HAS_MINIMUM * TILES * (SUMS == 1 ? HELD_ROWS * 8 : 64))
#define COLUMNS_BYTES (GROUP_BLOCKS * (PLANES_BYTES + SUMS_BYTES))  // of a group: planes of its blocks, then its sums
#define SLOT_BYTES (WEIGHT_BYTES + (HELD_GROUPS ? 0 : COLUMNS_BYTES))
#define HELD_BYTES (HELD_GROUPS * COLUMNS_BYTES)  // of a slice
#define OWN_TILES (UNIT_TILES / CLUSTER)
#define OWN_SUMS (SLICES * OWN_TILES * TILES * 4 * HELD_ROWS)  // float4s that are sent
// Of memory's bytes, what comes to an SM in a clock (of an H200); and the clocks in which a slot of every slice does.
#define CLOCK_BYTES 20
#define SLOT_CLOCKS (OWN_SLICES * WEIGHT_BYTES / CLOCK_BYTES)
#define IS_PACED (HELD_ROWS <= 4 && !BESIDE)
// Warps that fold: of 8 rows one a tile; of 16 one for each 8, so few that those that compute have registers enough.
#define FOLDERS (TILES == 1 ? OWN_TILES : TILES)
#define EACH_TILES (OWN_TILES * TILES / FOLDERS)

typedef Pipe<STAGES, SLOT_BYTES> SlicePipe;

// The ring of one of a block's slices; lanes that have none get the first.
DEVICE SlicePipe pipe_of(const u8* slots, const u64* barriers, int own) {
  const int slice = own < OWN_SLICES ? own : 0;
  return SlicePipe(slots + slice * STAGES * SLOT_BYTES, barriers + slice * 2 * STAGES);
}

// The activations that stay, of one of a block's slices: groups, and for each a barrier.
struct Held {
  u32 groups, barriers;

  METHOD Held(const u8* slots, const u64* pipes, int slice)
      : groups(shared_address(slots + OWN_SLICES * STAGES * SLOT_BYTES + slice * HELD_BYTES)), barriers(shared_address(pipes + 2 * OWN_SLICES * STAGES + slice * HELD_GROUPS)) {}
  METHOD void set() const {
    for (int i = 0; i < HELD_GROUPS; i++) set_barrier(barriers + 8 * i, 1);
  }
};

// A lane's part of what a warp brings: one of `each` pieces of a group of one of the block's slices.
struct Lane {
  int slice, piece;
  bool is_there;
  SlicePipe pipe;

  METHOD Lane(const u8* slots, const u64* barriers, int each)
      : slice((threadIdx.x & 31) / each), piece((threadIdx.x & 31) % each), is_there(slice < OWN_SLICES), pipe(pipe_of(slots, barriers, slice)) {}
  METHOD void claim(int bytes) const {
    if (is_there && piece == 0) pipe.claim(bytes);
    __syncwarp();
  }
};

// Blocks of the group of a slice that begins at block `first`.
DEVICE int blocks_of(int first, int blocks) { return max(0, min(GROUP_BLOCKS, blocks - first)); }

// By a warp: a lane a pair of tiles. The last slot of the rings is asked for once the kernel ahead has ended: activations would come behind it. Of few
// rows, whose products start before the norm ahead has read its row, slots are asked for no faster than memory brings them: the row would come behind.
DEVICE void bring_weights(const u8* slots, const u64* barriers, const Parts& parts, const Product& p, int first_slice) {
  Lane own(slots, barriers, PAIRS);
  const int group = first_slice + own.slice;
  int asked = 0;
  u32 asked_at = 0;
  for (int unit = blockIdx.x / CLUSTER; unit < p.units(); unit += gridDim.x / CLUSTER) {
    const Unit at = p.at(unit);
    const Part& part = parts.part[at.part];
    const int pairs = min(PAIRS, (part.outputs + 31) / 32 - at.tile / 2);
    const u8* from = part.weights + group_offset(at.tile + 2 * own.piece, group, p.blocks);
    for (int visit = 0; visit < p.blocks; visit += SLICES * GROUP_BLOCKS) {
      const int count = blocks_of(visit + group * GROUP_BLOCKS, p.blocks), bytes = count > 0 ? 2 * group_bytes(count) : 0;
      if (IS_PACED && asked > 0 && asked < STAGES - 1)
        while ((u32)clock() - asked_at < SLOT_CLOCKS) {}
      asked_at = clock();
      if (asked++ == STAGES - 1 && !BESIDE) await_previous();
      own.claim(pairs * bytes);
      if (own.is_there && own.piece < pairs && count > 0)
        copy_run(own.pipe.slot() + own.piece * PAIR_BYTES, from, bytes, own.pipe.filled(), GOES_FIRST);
      from += SLICES * PAIR_BYTES;
      own.pipe.pass();
    }
  }
}

// Where a slice's activations are, and its sums, group by group. There is room for no more rows than a unit has, so a group's blocks lie behind each
// other.
struct Source {
  const u8 *planes, *sums;

  METHOD Source(const Activation& a, int block)
      : planes(fragments_at(a, block, 0)), sums(SUMS == 2 ? group_sums_at(a, block / GROUP_BLOCKS, 0) : (const u8*)block_sums_at(a, block, 0)) {}

  // By one lane, `count` blocks of the next group.
  METHOD void copy(u32 to, u32 filled, int count) const {
    const u32 sums_to = to + GROUP_BLOCKS * PLANES_BYTES;
    copy_run(to, planes, count * PLANES_BYTES, filled, STAYS);
    if (SUMS > 0) copy_run(sums_to, sums, (SUMS == 2 ? GROUP_BLOCKS : count) * SUMS_BYTES, filled, STAYS);
  }
  METHOD void advance() { planes += SLICES * GROUP_BLOCKS * PLANES_BYTES, sums += SLICES * GROUP_BLOCKS * SUMS_BYTES; }
};

// Bytes of `count` blocks of a group.
DEVICE int columns_bytes(int count) { return count * PLANES_BYTES + (SUMS == 2 ? min(count, 1) * GROUP_BLOCKS : count) * SUMS_BYTES; }

// By one of a slice's computing warps: the first of its groups. So those of all slices are on their way at once, ahead of the weights that wait for
// the same kernel; one warp would ask for a slice's after the other's.
DEVICE void bring_first_columns(const SlicePipe& pipe, const Activation& a, const Product& p, int slice) {
  const int block = slice * GROUP_BLOCKS, count = blocks_of(block, p.blocks);
  const Source from(a, block);
  if (!BESIDE) await_previous();
  if (is_elected()) {
    arrive_expecting(pipe.filled(), columns_bytes(count));
    if (count > 0) from.copy(pipe.slot() + WEIGHT_BYTES, pipe.filled(), count);
  }
  __syncwarp();
}

// By a warp, a lane a slice: all groups but those first ones.
DEVICE void bring_columns(const u8* slots, const u64* barriers, const Activation& a, const Product& p, int first_slice) {
  Lane own(slots, barriers, 1);
  const int block = (first_slice + own.slice) * GROUP_BLOCKS;
  for (int unit = blockIdx.x / CLUSTER; unit < p.units(); unit += gridDim.x / CLUSTER) {
    Source from(a, block);
    for (int visit = 0; visit < p.blocks; visit += SLICES * GROUP_BLOCKS) {
      const int count = blocks_of(visit + block, p.blocks);
      if (visit > 0 || unit >= gridDim.x / CLUSTER) {
        own.claim(columns_bytes(count));
        if (own.is_there && count > 0) from.copy(own.pipe.slot() + WEIGHT_BYTES, own.pipe.filled(), count);
      }
      from.advance();
      own.pipe.pass();
    }
  }
}

// The same of activations that stay, but all of them; none where no row is wanted, for nobody would wait for them, and a block may not end before its
// copies.
DEVICE void hold_columns(const u8* slots, const u64* barriers, const Activation& a, const Product& p, int first_slice) {
  if (p.units() == 0) return;
  const Lane own(slots, barriers, 1);
  const Held held(slots, barriers, own.is_there ? own.slice : 0);
  const int block = (first_slice + own.slice) * GROUP_BLOCKS;
  Source from(a, block);
  for (int i = 0; i < HELD_GROUPS; i++) {
    const int count = blocks_of(i * SLICES * GROUP_BLOCKS + block, p.blocks);
    if (own.is_there) arrive_expecting(held.barriers + 8 * i, columns_bytes(count));
    if (own.is_there && count > 0) from.copy(held.groups + i * COLUMNS_BYTES, held.barriers + 8 * i, count);
    from.advance();
  }
}

// acc += a group of `count` blocks, of which a warp has ROW_TILES tiles. Columns of rows that are not there are 0: to multiply nothing takes less power,
// of which a step of few rows takes all that the card may draw.
template <bool is_whole>
DEVICE void fold_group(float (&acc)[ROW_TILES][TILES][4], const u8* weights, const u8* columns, int first_tile, int count, u32 offset, bool is_live) {
  const int lane = threadIdx.x & 31;
  const u8 *groups_of[ROW_TILES], *sums = columns + GROUP_BLOCKS * PLANES_BYTES;
  Head heads[ROW_TILES];
  UNROLL for (int r = 0; r < ROW_TILES; r++) {
    groups_of[r] = weights + (first_tile + r) / 2 * PAIR_BYTES + (first_tile + r) % 2 * group_bytes(is_whole ? GROUP_BLOCKS : count);
    heads[r] = Head(groups_of[r], lane >> 2);
  }
  float chains[ROW_TILES][TILES][4] = {}, minima[ROW_TILES][TILES][4] = {};
  UNROLL for (int n = 0; n < TILES; n++) multiply_minima(minima, n, heads, GroupSums(sums + n * GROUP_SUM_BYTES));
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    if (!is_whole && q >= count) break;
    Columns x[TILES];
    UNROLL for (int n = 0; n < TILES; n++) {
      UNROLL for (int plane = 0; plane < PLANES; plane++)
        x[n].planes[plane] = is_live ? *(const uint4*)(columns + q * PLANES_BYTES + (n * PLANES + plane) * PLANE_BYTES + lane * 16) : make_uint4(0, 0, 0, 0);
#if SUMS == 1
      x[n].sums = *(const float4*)(sums + q * SUMS_BYTES + n * (HELD_ROWS * 8) + lane % (HELD_ROWS / 2) * 16);
#endif
    }
    Record w[ROW_TILES];
    UNROLL for (int r = 0; r < ROW_TILES; r++) w[r].load(heads[r], groups_of[r], q, lane, offset);
    fold_blocks(GROUP_CHAINS ? chains : acc, 0, w, x);
  }
  UNROLL for (int n = 0; n < TILES; n++) end_group(acc, n, chains, minima, heads);
}

// Where a unit's sums meet in the block that owns their outputs: [slice][tile][8 rows][lane].
struct Meeting {
  u32 sums, there, taken;  // addresses; barriers: all sums are there, and every block of the cluster has taken its own
  int phase;

  METHOD u32 sums_of(int slice, int tile, int n) const { return sums + (((slice * OWN_TILES + tile) * TILES + n) * 32 + (threadIdx.x & 31)) * 16; }

  METHOD void send_sums(const float (&acc)[ROW_TILES][TILES][4], int slice, int first_tile) {
    wait_barrier(taken, phase ^ 1);
    UNROLL for (int r = 0; r < ROW_TILES; r++) {
      const int owner = (first_tile + r) / OWN_TILES, tile = (first_tile + r) % OWN_TILES;
      const u32 to = sums_of(slice, tile, 0), barrier = address_in(there, owner);
      UNROLL for (int n = 0; n < TILES; n++)
        if (2 * (threadIdx.x & 3) < HELD_ROWS) send(address_in(to, owner) + n * 512, make_float4(acc[r][n][0], acc[r][n][1], acc[r][n][2], acc[r][n][3]), barrier);
    }
    phase ^= 1;
  }

  // No block ends before all that others send it has come, so that they need not meet again: sums are waited for here, word that a unit's were taken
  // before the next unit's are sent, and of the last unit's there is none.
  METHOD void expect() const { arrive_expecting(there, OWN_SUMS * 16); }
  METHOD void wait() const { wait_barrier(there, phase); }
  METHOD void end(bool is_last) {
    __syncwarp();
    if ((threadIdx.x & 31) < CLUSTER && !is_last) arrive_at(address_in(taken, threadIdx.x & 31));
    phase ^= 1;
  }

  // y of a tile and 8 rows.
  METHOD float4 fold(int tile, int n, const float2 (&down)[SLICES]) const {
    float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
    UNROLL for (int s = 0; s < SLICES; s++) {
      const float4 sum = shared_at<float4>(sums_of(s, tile, n));
      y = make_float4(fmaf(sum.x, down[s].x, y.x), fmaf(sum.y, down[s].y, y.y), fmaf(sum.z, down[s].x, y.z), fmaf(sum.w, down[s].y, y.w));
    }
    return y;
  }
};

// The scales of a lane's two rows: as they come to the L2 where no wait of this kernel's own has made what an L1 holds the present ones.
DEVICE void load_scales(float2 (&down)[SLICES], const Activation& a, int row) {
  UNROLL for (int s = 0; s < SLICES; s++) {
    const float2* from = (const float2*)(a.scales + s * a.columns + row);
    down[s] = BESIDE ? __ldcg(from) : *from;
  }
}

// By one of FOLDERS warps: its tiles and 8 rows of every unit, folded and put. Places are found while the sums are on their way.
DEVICE void fold_units(Meeting& meeting, int folder, const Parts& parts, const Product& p, const Activation& a, const int* logits_slots) {
  const int first_tile = TILES == 1 ? folder : 0, n = TILES == 1 ? 0 : folder, lane = threadIdx.x & 31;
  const int clusters = __shfl_sync(~0u, gridDim.x / CLUSTER, 0);  // in a register: loaded where it is needed it would hold up the last fold
  for (int unit = blockIdx.x / CLUSTER; unit < p.units(); unit += clusters) {
    const Unit at = p.at(unit);
    const Part& part = parts.part[at.part];
    const int row = (at.row_tile + n) * 8 + 2 * (lane & 3), output = (at.tile + blockIdx.x % CLUSTER * OWN_TILES + first_tile) * 16 + (lane >> 2);
    const bool has_bias = part.bias != nullptr;
    float *to[2], biases[EACH_TILES][2];
    UNROLL for (int e = 0; e < 2; e++) {
      to[e] = row + e < p.rows ? part.out + (i64)(logits_slots == nullptr ? row + e : logits_slots[row + e]) * part.out_stride + output : nullptr;
      UNROLL for (int i = 0; i < EACH_TILES; i++) biases[i][e] = has_bias && output + 16 * i + 8 * e < part.outputs ? part.bias[output + 16 * i + 8 * e] : 0.f;
    }
    if (folder == 0 && lane == 0) meeting.expect();
    float2 down[SLICES];
    load_scales(down, a, row);
    meeting.wait();
    UNROLL for (int i = 0; i < EACH_TILES; i++) {
      const float4 y = meeting.fold(first_tile + i, n, down);
      const float values[4] = {y.x, y.y, y.z, y.w};
      UNROLL for (int j = 0; j < 4; j++) {
        const int at_output = 16 * i + 4 * (j & 2);
        if (to[j & 1] != nullptr && output + at_output < part.outputs) to[j & 1][at_output] = has_bias ? __fadd_rn(values[j], biases[i][j >> 1]) : values[j];
      }
    }
    meeting.end(unit + clusters >= p.units());
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(32 * (WARPS + 2 + FOLDERS), 1)
matmul_cluster(const __grid_constant__ Parts parts, u8* activation, int blocks, int columns, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[OWN_SLICES * (2 * STAGES + HELD_GROUPS) + 2];
  const u32 there = shared_address(barriers + OWN_SLICES * (2 * STAGES + HELD_GROUPS));
  if (threadIdx.x == 0) {
    set_barrier(there, 1), set_barrier(there + 8, CLUSTER * FOLDERS);
    for (int own = 0; own < OWN_SLICES; own++) Held(shared, barriers, own).set(), pipe_of(shared, barriers, own).set(SLICE_WARPS, HELD_GROUPS ? 1 : 2);
  }
  __syncwarp();
  meet_blocks();
  if (!LEADS) let_next_start();
  const Product p(parts, blocks, __shfl_sync(~0u, step[domain], 0));
  const Activation a = activation_at(activation, blocks, columns);
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), rank = blockIdx.x % CLUSTER, clusters = gridDim.x / CLUSTER;
  Meeting meeting = {shared_address(shared + OWN_SLICES * (STAGES * SLOT_BYTES + HELD_BYTES)), there, there + 8, 0};
  if (warp == WARPS) {
    bring_weights(shared, barriers, parts, p, rank * OWN_SLICES);
  } else if (warp == WARPS + 1) {
    if (!BESIDE) await_previous();
    if (LEADS) let_next_start();
    if (HELD_GROUPS) hold_columns(shared, barriers, a, p, rank * OWN_SLICES);
    else bring_columns(shared, barriers, a, p, rank * OWN_SLICES);
    if (BESIDE) await_previous();
  } else if (warp >= WARPS + 2) {
    if (!BESIDE) await_previous();
    fold_units(meeting, warp - WARPS - 2, parts, p, a, domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr);
  } else {
    const int own = warp / SLICE_WARPS, first_tile = warp % SLICE_WARPS * ROW_TILES, slice = rank * OWN_SLICES + own;
    SlicePipe pipe = pipe_of(shared, barriers, own);
    const Held held(shared, barriers, own);
    const bool is_live = TILES > 1 || (threadIdx.x & 31) >> 2 < p.rows;  // a lane's row; of 9 and more most are
    if (!HELD_GROUPS && warp % SLICE_WARPS == 0 && p.units() > 0) bring_first_columns(pipe, a, p, slice);
    for (int unit = blockIdx.x / CLUSTER; unit < p.units(); unit += clusters) {
      const u32 offset = code_offset(parts.part[p.at(unit).part].zero);
      float acc[ROW_TILES][TILES][4] = {};
      for (int first = 0, visit = 0; first < blocks; first += SLICES * GROUP_BLOCKS, visit++) {
        const int left = blocks - first - slice * GROUP_BLOCKS;
        if (HELD_GROUPS && unit < clusters) wait_barrier(held.barriers + 8 * visit, 0);
        pipe.wait();
        const u8* slot = shared + (own * STAGES + pipe.stage) * SLOT_BYTES;
        const u8* columns_at = HELD_GROUPS ? shared + OWN_SLICES * STAGES * SLOT_BYTES + own * HELD_BYTES + visit * COLUMNS_BYTES : slot + WEIGHT_BYTES;
        if (left >= GROUP_BLOCKS) fold_group<true>(acc, slot, columns_at, first_tile, GROUP_BLOCKS, offset, is_live);
        else if (left > 0) fold_group<false>(acc, slot, columns_at, first_tile, left, offset, is_live);
        pipe.give_back<true>();
      }
      meeting.send_sums(acc, slice, first_tile);
    }
  }
}
