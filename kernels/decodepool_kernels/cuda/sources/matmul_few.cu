// out = W x (+ bias) of up to MOST_ROWS rows (1, 2, 4, or 8 with ROW_TILES 1) and a k-quant on sm_90. A unit is ROW_TILES x 16 outputs and a team's of
// 8 warps, each with a slice of K: its groups come to a ring of the warp's own, to a slot as soon as the group before there is read. Weights of the
// first units are on their way before the kernel ahead has ended; then all rows' activations come to shared memory, once a block. A team's warps take
// turns to fold a unit's slices in order, y = fma(acc, 2^-e, y), while the others go on. Where an SM has one team, each warp has a helper beside
// it, which makes the chains of the later half of each group's blocks and hands them over.
//
// Rows are repeated in the tensor core's 8 columns, so that lanes with outputs in common have the same sums: each adds up those of one output (of two,
// for two of 4 or 8 rows) and needs no other's scales. A short group is a whole one whose last blocks have activations of 0, and any codes.
#define TILES 1  // of 8 rows
#define UNIT_OUTPUTS (16 * ROW_TILES)
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"

#define HELPERS (TEAMS == 1)
#define RINGS (SLICES * TEAMS)
#define WARPS (RINGS * (1 + HELPERS))
// Of a group: what a tile and a unit take, how far on a slice's next one lies, what is one warp's, what activations take.
#define TILE_BYTES (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES)
#define RUN_BYTES (ROW_TILES * TILE_BYTES)
#define NEXT_RUN (SLICES * 2 * TILE_BYTES)
#define GROUP_PARTS (GROUP_BLOCKS * PARTS)
#define WARP_BLOCKS (GROUP_BLOCKS / (1 + HELPERS))
#define WARP_PARTS (WARP_BLOCKS * PARTS)
#define PLANES_BYTES (GROUP_BLOCKS * PLANES * MOST_ROWS * 64)
#define SUMS_BYTES (HAS_MINIMUM * MOST_ROWS * GROUP_PARTS * 4)
// What a lane adds up.
#define OWN_OUTPUTS (MOST_ROWS <= 2 ? 1 : 2)
#define OWN_ROWS (MOST_ROWS == 1 ? 1 : 2)
#define OWN_COUNT (OWN_OUTPUTS * OWN_ROWS)
#define SLICE_SUMS (32 * OWN_COUNT)
#define HELP_BYTES (HELPERS * WARP_PARTS * SLICE_SUMS * 4)

typedef Pipe<STAGES, RUN_BYTES> WeightPipe;                     // a warp's
typedef Pipe<2, SLICES * SLICE_SUMS * sizeof(float)> SumsPipe;  // a team's
typedef float OwnSums[OWN_OUTPUTS][OWN_ROWS];
typedef OwnSums Chains[WARP_PARTS];

// What a lane adds up: of a unit's tile, outputs g + 8 output.. and rows row..
struct Own {
  int tile, output, row;

  METHOD Own() {
    const int t = threadIdx.x & 3;
    tile = ROW_TILES == 2 ? t >> 1 : 0;
    output = OWN_OUTPUTS == 1 ? t & 1 : 0;
    row = OWN_OUTPUTS == 1 ? 0 : 2 * t % MOST_ROWS;
  }
  METHOD float pick(const float (&s)[ROW_TILES][1][4], int o, int n) const {
    const float* first = s[0][0];
    const float* last = s[ROW_TILES - 1][0];
    if (OWN_OUTPUTS == 2) return tile == 0 ? first[2 * o + n] : last[2 * o + n];
    return tile == 0 ? (output == 0 ? first[n] : first[2 + n]) : (output == 0 ? last[n] : last[2 + n]);
  }
};

// All rows of whole groups, in shared memory: planes [block][plane][row][64 bytes], sums [group][row][block, part], scales [slice][row]. What is
// missing is 0.
struct Rows {
  u32 planes, sums;

  METHOD void place(const Activation& a, u32 scales, int blocks, int groups, int rows) const {
    const bool has_scale = threadIdx.x < SLICES * MOST_ROWS;
    const float scale = has_scale ? a.scales[threadIdx.x / MOST_ROWS * COLUMNS + threadIdx.x % MOST_ROWS] : 0.f;  // put when all else is on its way
    for (int i = threadIdx.x; i < groups * (PLANES_BYTES / 16); i += 32 * WARPS) {
      const int row = i / 4 % MOST_ROWS, plane = i / (4 * MOST_ROWS) % PLANES, block = i / (4 * MOST_ROWS * PLANES);
      if (row < rows && block < blocks) copy16(planes + i * 16, fragments_at(a, block, 0) + plane * a.plane_bytes() + row * ROW_BYTES + i % 4 * 16);
      else put_shared(planes + i * 16, make_float4(0.f, 0.f, 0.f, 0.f));
    }
    commit_copies();
    for (int i = threadIdx.x; HAS_MINIMUM && i < groups * GROUP_BLOCKS * MOST_ROWS; i += 32 * WARPS) {
      const int row = i % MOST_ROWS, block = i / MOST_ROWS;
      const float2 pair = row < rows && block < blocks ? *(const float2*)(a.sums + (block * COLUMNS + row) * 2) : make_float2(0.f, 0.f);
      const u32 to = sums + ((block / GROUP_BLOCKS * MOST_ROWS + row) * GROUP_BLOCKS + block % GROUP_BLOCKS) * (PARTS * 4);
      put_shared(to, PARTS == 1 ? __fadd_rn(pair.x, pair.y) : pair.x);
      if (PARTS == 2) put_shared(to + 4, pair.y);
    }
    if (has_scale) put_shared(scales + threadIdx.x * 4, scale);
    wait_copies<0>();
    __syncthreads();
  }
  METHOD void advance() {
    planes += SLICES * PLANES_BYTES;
    sums += SLICES * SUMS_BYTES;
  }
};

// A lane's scales (plane 0) and minima (plane 1) of a whole group.
struct Scales {
  float of[OWN_OUTPUTS][SCALE_PLANES][GROUP_PARTS];

  METHOD Scales(u32 head, const Own& own) {
    const int g = (threadIdx.x & 31) >> 2;
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++) {
        const int place = (g * SCALE_PLANES + plane) * 2 + own.output + o;
        const float unit = f32_of_f16(shared_at<u16>(head + FACTORS_BYTES + place * 2));
        UNROLL for (int part = 0; part < PARTS; part++) {
          const u32 word = shared_at<u32>(head + (place * PARTS + part) * 4);
          UNROLL for (int i = 0; i < 4; i++) of[o][plane][4 * part + i] = scale_of_byte(unit, word, i);
        }
      }
  }
};

// What a lane has of a warp's blocks of a group, from block `first` on; the second tile begins `tile_bytes` behind the first.
DEVICE void make_chains(Chains& chains, const Own& own, u32 slot, int first, u32 tile_bytes, const Rows& rows, u32 offset) {
  const int lane = threadIdx.x & 31, column = lane >> 2;
  const u32 codes = slot + HEAD_BYTES + first * RECORD_BYTES + lane * sizeof(Words);
  const u32 planes = rows.planes + first * (PLANES * MOST_ROWS * 64) + column % MOST_ROWS * 64 + lane % 4 * 16;
  UNROLL for (int q = 0; q < WARP_BLOCKS; q++) {
    Record w[ROW_TILES];
    Columns x[1];
    UNROLL for (int plane = 0; plane < PLANES; plane++) x[0].planes[plane] = shared_at<uint4>(planes + (q * PLANES + plane) * (MOST_ROWS * 64));
    UNROLL for (int r = 0; r < ROW_TILES; r++) widen(w[r].codes, shared_at<Words>(codes + r * tile_bytes + q * RECORD_BYTES), offset);
    UNROLL for (int part = 0; part < PARTS; part++) {
      float s[ROW_TILES][1][4] = {};
      chain_part(s, w, x, part);
      UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
        UNROLL for (int n = 0; n < OWN_ROWS; n++) chains[q * PARTS + part][o][n] = own.pick(s, o, n);
    }
  }
}

// acc += chains of a group's parts from `first` on.
DEVICE void add_chains(OwnSums& acc, const Chains& chains, int first, const Scales& scales, const float (&part_sums)[OWN_ROWS][GROUP_PARTS]) {
  UNROLL for (int i = 0; i < WARP_PARTS; i++)
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int n = 0; n < OWN_ROWS; n++) {
        acc[o][n] = fmaf(chains[i][o][n], scales.of[o][0][first + i], acc[o][n]);
        if (HAS_MINIMUM) acc[o][n] = fmaf(part_sums[n][first + i], scales.of[o][SCALE_PLANES - 1][first + i], acc[o][n]);
      }
}

// acc += the group in a slot. A helper's chains are at `help` once the slot's second barrier says so.
DEVICE void fold_group(OwnSums& acc, const Own& own, const WeightPipe& pipe, u32 help, u32 tile_bytes, const Rows& rows, u32 offset) {
  const Scales scales(pipe.slot() + own.tile * tile_bytes, own);
  float part_sums[OWN_ROWS][GROUP_PARTS];
  UNROLL for (int n = 0; HAS_MINIMUM && n < OWN_ROWS; n++)
    UNROLL for (int part = 0; part < PARTS; part++) *(float4*)(part_sums[n] + 4 * part) = shared_at<float4>(rows.sums + ((own.row + n) * PARTS + part) * 16);
  Chains chains;
  make_chains(chains, own, pipe.slot(), 0, tile_bytes, rows, offset);
  add_chains(acc, chains, 0, scales, part_sums);
  if (!HELPERS) return;
  wait_barrier(pipe.filled() + 8, pipe.phase);
  UNROLL for (int i = 0; i < WARP_PARTS * OWN_COUNT; i++) (&chains[0][0][0])[i] = shared_at<float>(help + i * 128);
  add_chains(acc, chains, GROUP_PARTS - WARP_PARTS, scales, part_sums);
}

// A helper's part of it.
DEVICE void help_group(const Own& own, const WeightPipe& pipe, u32 help, u32 tile_bytes, const Rows& rows, u32 offset) {
  Chains chains;
  make_chains(chains, own, pipe.slot(), GROUP_BLOCKS - WARP_BLOCKS, tile_bytes, rows, offset);
  UNROLL for (int i = 0; i < WARP_PARTS * OWN_COUNT; i++) put_shared(help + i * 128, (&chains[0][0][0])[i]);
  end_plain_reads();
  arrive(pipe.filled() + 8);
}

// A slice's sums, for the warp that folds; every lane arrives with its own.
DEVICE void keep_sums(SumsPipe& pipe, int slice, const OwnSums& acc) {
  const int lane = threadIdx.x & 31;
  const u32 to = pipe.slot() + (slice * SLICE_SUMS + lane) * 4;
  wait_barrier(pipe.filled() + 8, pipe.phase ^ 1);
  UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
    UNROLL for (int n = 0; n < OWN_ROWS; n++) put_shared(to + (o * OWN_ROWS + n) * 128, acc[o][n]);
  arrive(pipe.filled());
  pipe.pass();
}

// A warp folds a unit's slices and puts its outputs.
DEVICE void fold_unit(SumsPipe pipe, const Part& part, int first_tile, u32 scales, const Own& own, int rows, const int* logits_slots) {
  const int lane = threadIdx.x & 31;
  pipe.wait();
  UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
    UNROLL for (int n = 0; n < OWN_ROWS; n++) {
      float y = 0.f;
      UNROLL for (int s = 0; s < SLICES; s++)
        y = fmaf(shared_at<float>(pipe.slot() + (s * SLICE_SUMS + (o * OWN_ROWS + n) * 32 + lane) * 4), shared_at<float>(scales + (s * MOST_ROWS + own.row + n) * 4), y);
      const int output = (first_tile + own.tile) * 16 + (own.output + o) * 8 + (lane >> 2), row = own.row + n;
      const bool is_first = ROW_TILES == 2 || MOST_ROWS == 8 || lane % 4 < 2;  // of the lanes that have this sum
      if (is_first && row < rows && output < part.outputs) put_output(part, logits_slots == nullptr ? row : logits_slots[row], output, y);
    }
  pipe.give_back<false>();
}

// The runs of bytes that a warp's ring takes: its slice's groups of each of its team's units. Alike in all lanes.
struct Feed {
  const u8* pair;  // of tiles
  int unit, left;  // blocks from the slice's next group on

  METHOD void find(const Parts& parts, const Product& p, int slice) {
    if (unit >= p.units()) return;
    const Unit at = p.at(unit);
    left = p.blocks - slice * GROUP_BLOCKS;
    pair = parts.part[at.part].weights + group_offset(at.tile & ~1, slice, p.blocks);
  }

  // A slot's copy.
  METHOD void fill(const WeightPipe& pipe, const Parts& parts, const Product& p, int slice) {
    if (unit >= p.units()) return;
    const int tile_bytes = group_bytes(min(GROUP_BLOCKS, left)), bytes = ROW_TILES * tile_bytes;
    if (is_elected()) {
      arrive_expecting(pipe.filled(), bytes);
      copy_run(pipe.slot(), pair + (ROW_TILES == 1 ? p.at(unit).tile % 2 * tile_bytes : 0), bytes, pipe.filled(), GOES_FIRST);
    }
    pair += NEXT_RUN;
    left -= SLICES * GROUP_BLOCKS;
    if (left > 0) return;
    unit += gridDim.x * TEAMS;
    find(parts, p, slice);
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
matmul_few(const __grid_constant__ Parts parts, u8* activation, int blocks, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[2 * (RINGS * STAGES + TEAMS * 2)];
  u8* all_sums = shared + RINGS * STAGES * RUN_BYTES;
  const int lane = threadIdx.x & 31, ring = (threadIdx.x >> 5) % RINGS, slice = ring % SLICES, team = ring / SLICES;
  const bool is_helper = HELPERS && threadIdx.x >= 32 * RINGS;
  WeightPipe weights(shared + ring * STAGES * RUN_BYTES, barriers + 2 * STAGES * ring);
  SumsPipe sums_pipe(all_sums + team * 2 * SLICES * SLICE_SUMS * 4, barriers + 2 * (RINGS * STAGES + team * 2));
  const int rows = step[domain], most = blocks - slice * GROUP_BLOCKS, groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
  const Product p(parts, blocks, 1);  // units are the same for all the rows there may be
  const int first_unit = blockIdx.x + gridDim.x * team;
  Feed feed = {nullptr, most > 0 && !is_helper ? first_unit : p.units(), 0};
  feed.find(parts, p, slice);
  if (lane == 0 && !is_helper) {
    weights.set(32);  // a slot's second barrier is for the helper's lanes: who reads a slot fills it anew, and needs none
    if (slice == 0) sums_pipe.set(1, 32 * SLICES);
  }
  __syncwarp();
  WeightPipe filling = weights;
  _Pragma("unroll 1") for (int stage = 0; stage < STAGES; stage++, filling.pass()) feed.fill(filling, parts, p, slice);
  let_next_start();
  await_previous();
  const Activation a = activation_at(activation, blocks, COLUMNS);
  const u32 scales = shared_address(all_sums + TEAMS * 2 * SLICES * SLICE_SUMS * 4), first_planes = scales + SLICES * MOST_ROWS * 4;
  const u32 first_sums = first_planes + groups * PLANES_BYTES;
  const u32 first_help = first_sums + groups * SUMS_BYTES + ring * STAGES * HELP_BYTES + lane * 4;
  Rows{first_planes, first_sums}.place(a, scales, blocks, groups, rows);
  const int* logits_slots = domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr;
  const Own own;
  for (int unit = first_unit, fold_turn = slice; unit < p.units(); unit += gridDim.x * TEAMS, fold_turn = (fold_turn + SLICES - 1) % SLICES) {
    const Unit at = p.at(unit);
    const u32 offset = code_offset(parts.part[at.part].zero);
    OwnSums acc = {};
    Rows x = {first_planes + slice * PLANES_BYTES, first_sums + slice * SUMS_BYTES};
    for (int left = most; left > 0; left -= SLICES * GROUP_BLOCKS) {
      const u32 tile_bytes = left >= GROUP_BLOCKS ? TILE_BYTES : group_bytes(left), help = first_help + weights.stage * HELP_BYTES;
      weights.wait();
      if (is_helper) help_group(own, weights, help, tile_bytes, x, offset);
      else {
        fold_group(acc, own, weights, help, tile_bytes, x, offset);
        end_plain_reads();
        __syncwarp();
        feed.fill(weights, parts, p, slice);
      }
      weights.pass();
      x.advance();
    }
    if (is_helper) continue;
    const SumsPipe kept = sums_pipe;
    keep_sums(sums_pipe, slice, acc);
    if (fold_turn == 0) fold_unit(kept, parts.part[at.part], at.tile, scales, own, rows, logits_slots);
  }
}
