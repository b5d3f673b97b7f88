// The product of many rows on sm_90a: a block takes 256 outputs x up to 64 rows, or 128 x 128, 64 outputs a warpgroup, by wgmma: weights pass
// through registers, activations (CORES) stay in shared memory. Two more warps copy them, each through its own pipe. With 128 rows, what a
// warpgroup does for a block of weights beside its products (wait, unpack, give back) serves twice the products. block_chain.cuh or
// group_chain.cuh goes through a slice.
//
// The work is a run of slices: of every unit, slices 0 to 7. A block takes an even share of the run, so that every SM is busy to the end. Where
// shares meet within a unit, the sum over the slices so far is handed on, warp to warp, and folded on: the bits are those of matmul. SPLIT:
// a slice's sums go to `partials` [slice][row][width] instead, for who takes them or fold_slices. HALF: units have 128 outputs, as tall ones
// have, and those of slices left apart where the last of 256 would leave most SMs idle. BESIDE: the product ahead takes the same activations and
// lets this one start once they are there, so this one waits for it at its end alone: its slices go to the SMs that the last ones there leave idle.
#define UNIT_OUTPUTS (TILES > 8 || HALF ? 128 : 256)
#define PLACE_OUTPUTS 256  // slices left apart lie as they do for who takes them, whatever a unit has
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"
#include "wgmma.cuh"

#define WARPS (UNIT_OUTPUTS / 16)
#define THREADS (32 * WARPS + 128)
#define PAIR_BYTES (2 * (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES))
#define PAIRS (UNIT_OUTPUTS / 32)
#define PLANES_BYTES (TILES * PLANES * FRAGMENT_BYTES)
#define BLOCK_SUMS_BYTES (SUMS == 1 ? (TILES > 8 ? 1024 : 512) : 0)  // of which 8 a row are filled
#define COLUMN_BYTES (PLANES_BYTES + BLOCK_SUMS_BYTES)
#define STAGE_SUMS (COLUMN_BLOCKS * COLUMN_BYTES)  // where those of a group lie in the last of its stages
#define STAGE_BYTES (STAGE_SUMS + (SUMS == 2 ? (TILES + 1) / 2 * 512 : 0))
#define HANDED (TILES * 32 * WARPS)  // float4s of a unit

typedef Pipe<WEIGHT_STAGES, PAIRS * PAIR_BYTES> WeightPipe;
typedef Pipe<COLUMN_STAGES, STAGE_BYTES> ColumnPipe;

// A block's share of the run. Units are taken from the last to the first: the one whose later slices are another block's comes first.
struct Share {
  int begin, end, index;

  METHOD Share(int units) : index(blockIdx.x) {
    const int slices = units * SLICES, shares = min((int)gridDim.x, slices);
    begin = index < shares ? (int)((i64)slices * index / shares) : 0;
    end = index < shares ? (int)((i64)slices * (index + 1) / shares) : 0;
  }
  // The next unit and its slices from `first` to before `past`; false after the last.
  METHOD bool take(int& unit, int& first, int& past) {
    if (end <= begin) return false;
    unit = (end - 1) / SLICES;
    first = max(begin - unit * SLICES, 0);
    past = end - unit * SLICES;
    end = unit * SLICES + first;
    return true;
  }
};

template <class Visit> DEVICE void each_group(Share share, int groups, Visit visit) {
  int unit, first, past;
  while (share.take(unit, first, past))
    for (int slice = first; slice < past; slice++)
      for (int group = slice; group < groups; group += SLICES) visit(unit, group);
}

DEVICE void copy_weights(WeightPipe& pipe, const Parts& parts, const Product& p, const Share& share, int groups) {
  const int lane = threadIdx.x & 31;
  const u64 policy = p.column_groups() > 1 ? STAYS : GOES_FIRST;
  each_group(share, groups, [&](int unit, int group) {
    const Unit at = p.at(unit);
    const Part& part = parts.part[at.part];
    const int bytes = 2 * group_bytes(min(GROUP_BLOCKS, p.blocks - group * GROUP_BLOCKS));
    const int pairs = max(0, min(PAIRS, (part.outputs + 31) / 32 - at.tile / 2));  // none where a place's first unit holds all its outputs
    if (lane == 0) pipe.claim(pairs * bytes);
    __syncwarp();
    if (lane < pairs)
      copy_run(pipe.slot() + lane * PAIR_BYTES, part.weights + group_offset(at.tile + 2 * lane, group, p.blocks), bytes, pipe.filled(), policy);
    pipe.pass();
  });
}

// Stages of COLUMN_BLOCKS blocks, the last of a group short where the group is.
DEVICE void copy_columns(ColumnPipe& pipe, const Activation& a, const Product& p, const Share& share, int groups) {
  each_group(share, groups, [&](int unit, int group) {
    const Unit at = p.at(unit);
    const int past = min(p.blocks, (group + 1) * GROUP_BLOCKS);
    for (int first = group * GROUP_BLOCKS; first < past; first += COLUMN_BLOCKS) {
      const int count = min(COLUMN_BLOCKS, past - first);
      const int sums_bytes = SUMS == 2 && first + count == past ? TILES * GROUP_SUM_BYTES : 0;
      pipe.claim(count * (PLANES_BYTES + (SUMS == 1) * UNIT_COLUMNS * 8) + sums_bytes);
      if (sums_bytes > 0) copy_run(pipe.slot() + STAGE_SUMS, group_sums_at(a, group, at.row_tile), sums_bytes, pipe.filled(), STAYS);
      for (int i = 0; i < count; i++) {
        const u32 target = pipe.slot() + i * COLUMN_BYTES;
        copy_run(target, fragments_at(a, first + i, at.row_tile), PLANES_BYTES, pipe.filled(), STAYS);
        if (SUMS == 1) copy_run(target + PLANES_BYTES, block_sums_at(a, first + i, at.row_tile * 8), UNIT_COLUMNS * 8, pipe.filled(), STAYS);
      }
      pipe.pass();
    }
  });
}

// Where a warp's 16 outputs lie in the slot at hand, of a group of `count` blocks.
DEVICE const u8* own_records(const u8* slots, const WeightPipe& pipe, int count) {
  const int warp = threadIdx.x >> 5;
  return slots + pipe.stage * (PAIRS * PAIR_BYTES) + warp / 2 * PAIR_BYTES + warp % 2 * group_bytes(count);
}

// What a warpgroup goes through.
struct Stream {
  const u8* slots;
  WeightPipe weights;
  ColumnPipe columns;
  u32 offset, rows;  // rows: of the stage of columns at hand

  // The exchange tells the compiler that `rows` is alike in all lanes: what each step needs of it is then made in uniform registers.
  METHOD void wait_columns() {
    rows = __shfl_sync(~0u, rows_at(columns.slot()), 0);
    columns.wait();
  }
};

#if GROUP_CHAINS
#include "group_chain.cuh"
#else
#include "block_chain.cuh"
#endif

// Sums handed from the block whose share ends within a unit to the one that goes on, each warp's by itself: who waits, waits for blocks before it.
struct Handover {
  float4* sums;  // [share][tile of 8 rows][thread]
  u32* flags;    // [share][warp], 0 between launches

  METHOD float4* from(int share) const { return sums + (i64)share * HANDED + threadIdx.x; }
  METHOD u32* flag(int share) const { return flags + share * WARPS + (threadIdx.x >> 5); }
  METHOD void await(int share) const {
    u32 there = 0;
    while (there == 0) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag(share)) : "memory");
    __syncwarp();
    if ((threadIdx.x & 31) == 0) *flag(share) = 0;
  }
  METHOD void tell(int share) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag(share)) : "memory");
  }
};

DEVICE void meet_computing() { asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory"); }

// What becomes of a slice's sums.
struct Ending {
  const Product& p;
  const Activation& a;
  const Handover& handover;
  float4* totals;  // [tile of 8 rows][thread]
  float* scales;   // [slice][row of a unit]
  const int* logits_slots;
  i64 width;  // of a row of slices left apart: of this product's, and of those beside it
  int share, first, past;

  METHOD void put(const Part& part, const Unit& at, float4 (&y)[TILES]) const {
    const int lane = threadIdx.x & 31, output = (at.tile + (threadIdx.x >> 5)) * 16 + (lane >> 2), row = at.row_tile * 8 + 2 * (lane & 3);
    const int left = p.rows - row, above = output < part.outputs ? left : 0, below = output + 8 < part.outputs ? left : 0;  // rows
    if (part.bias != nullptr) {
      const float first = above > 0 ? part.bias[output] : 0.f, second = below > 0 ? part.bias[output + 8] : 0.f;
      UNROLL for (int n = 0; n < TILES; n++)
        y[n] = make_float4(__fadd_rn(y[n].x, first), __fadd_rn(y[n].y, first), __fadd_rn(y[n].z, second), __fadd_rn(y[n].w, second));
    }
    const i64 stride = part.out_stride;
    float* to = part.out + output + (logits_slots == nullptr ? row * stride : 0);
    UNROLL for (int n = 0; n < TILES; n++) {
      UNROLL for (int next = 0; next < 2; next++) {
        const int i = 8 * n + next;
        float* place = to + (logits_slots == nullptr ? next * stride : i < left ? logits_slots[row + i] * stride : 0);
        if (i < above) place[0] = next ? y[n].y : y[n].x;
        if (i < below) place[8] = next ? y[n].w : y[n].z;
      }
      if (logits_slots == nullptr) to += 8 * stride;
    }
  }

  METHOD void leave(const Unit& at, int place, int slice, const float (&acc)[TILES][4], float* partials) const {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = at.row_tile * 8 + 2 * (lane & 3);
    float* to = partials + ((i64)slice * p.rows + row) * width + (i64)place * UNIT_OUTPUTS + warp * 16 + (lane >> 2);
    UNROLL for (int n = 0; n < TILES; n++, to += 8 * width) {
      if (row + 8 * n < p.rows) to[0] = acc[n][0], to[8] = acc[n][2];
      if (row + 8 * n + 1 < p.rows) to[width] = acc[n][1], to[width + 8] = acc[n][3];
    }
  }

  // A unit's scales, where every slice's end finds them without a wait.
  METHOD void hold_scales(int row_tile) const {
    meet_computing();
    for (int i = threadIdx.x; i < SLICES * UNIT_COLUMNS; i += 32 * WARPS)
      scales[i] = a.scales[i / UNIT_COLUMNS * a.columns + row_tile * 8 + i % UNIT_COLUMNS];
    meet_computing();
  }

  METHOD void fold(const Part& part, const Unit& at, int slice, const float (&acc)[TILES][4]) const {
    float2 down[TILES];
    float4 y[TILES];
    UNROLL for (int n = 0; n < TILES; n++)
      down[n] = *(const float2*)(scales + (slice * TILES + n) * 8 + 2 * (threadIdx.x & 3));
    take(y, slice);
    UNROLL for (int n = 0; n < TILES; n++)
      y[n] = make_float4(fmaf(acc[n][0], down[n].x, y[n].x), fmaf(acc[n][1], down[n].y, y[n].y), fmaf(acc[n][2], down[n].x, y[n].z), fmaf(acc[n][3], down[n].y, y[n].w));
    if (slice + 1 == SLICES) put(part, at, y);
    else keep(slice, y);
  }

  // The sum over the slices before.
  METHOD void take(float4 (&y)[TILES], int slice) const {
    if (slice > first) {
      UNROLL for (int n = 0; n < TILES; n++) y[n] = totals[n * 32 * WARPS + threadIdx.x];
    } else if (slice > 0) {
      handover.await(share - 1);
      UNROLL for (int n = 0; n < TILES; n++) y[n] = __ldcg(handover.from(share - 1) + n * 32 * WARPS);
    } else {
      UNROLL for (int n = 0; n < TILES; n++) y[n] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }

  METHOD void keep(int slice, const float4 (&y)[TILES]) const {
    if (slice + 1 < past) {
      UNROLL for (int n = 0; n < TILES; n++) totals[n * 32 * WARPS + threadIdx.x] = y[n];
    } else {
      UNROLL for (int n = 0; n < TILES; n++) handover.from(share)[n * 32 * WARPS] = y[n];
      handover.tell(share);
    }
  }
};

// Registers move from the warps that copy to those that compute: 640 x 96 or 384 x 168 at the start.
#define MORE_REGISTERS (UNIT_OUTPUTS == 256 ? 112 : 232)
DEVICE void keep_few_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 32;"); }
DEVICE void take_more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE_REGISTERS)); }

// The next kernel may run beside this one, and reads the same activations then: it starts once they are there.
DEVICE void await_activations() {
  if (!BESIDE) await_previous();
  let_next_start();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_warpgroup(const __grid_constant__ Parts parts, u8* activation, int blocks, int columns, const int* step, int domain, float* partials, int width,
                 u32* flags) {
  extern __shared__ __align__(1024) u8 shared[];  // and no other: it begins on 1024 bytes
  const u8* weight_slots = shared + COLUMN_STAGES * STAGE_BYTES;
  u64* barriers = (u64*)(weight_slots + WEIGHT_STAGES * PAIRS * PAIR_BYTES);
  float4* totals = (float4*)(barriers + 2 * (WEIGHT_STAGES + COLUMN_STAGES));
  WeightPipe weight_pipe(weight_slots, barriers);
  ColumnPipe column_pipe(shared, barriers + 2 * WEIGHT_STAGES);
  if (threadIdx.x == 0) weight_pipe.set(WARPS), column_pipe.set(WARPS);
  __syncthreads();
  const Product p(parts, blocks, __shfl_sync(~0u, step[domain], 0));  // alike in all lanes, as the compiler cannot know
  const Activation a = activation_at(activation, blocks, columns);
  Share share(p.units());
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);  // so is this
  if (warp >= WARPS) {
    keep_few_registers();
    const int groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
    if (warp == WARPS) copy_weights(weight_pipe, parts, p, share, groups);
    await_activations();
    if (threadIdx.x == 32 * (WARPS + 1)) copy_columns(column_pipe, a, p, share, groups);
  } else {
    take_more_registers();
    await_activations();
    const Handover handover = {(float4*)partials, flags};
    Ending ending = {p, a, handover, totals, (float*)(totals + HANDED), domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr, width, share.index, 0, 0};
    Way way = {weight_slots, weight_pipe, column_pipe, 0, 0};
    int unit, held_tile = -1;
    while (share.take(unit, ending.first, ending.past)) {
      const Unit at = p.at(unit);
      if (!SPLIT && at.row_tile != held_tile) ending.hold_scales(held_tile = at.row_tile);
      const Part& part = parts.part[at.part];
      way.offset = code_offset(part.zero);
      for (int slice = ending.first; slice < ending.past; slice++) {
        float acc[TILES][4] = {};
        way.sum(acc, slice, blocks);
        if (SPLIT) ending.leave(at, unit / p.column_groups(), slice, acc, partials);
        else ending.fold(part, at, slice, acc);
      }
    }
  }
  if (BESIDE) await_previous();
}
