// out = W x (+ bias) of up to MOST_ROWS rows (1, 2, 4, or 8 with ROW_TILES 1) and a k-quant on sm_90. A unit is ROW_TILES x 16 outputs and a team's of
// 8 warps, each with a slice of K: its groups come to a ring of the warp's own, to a slot as soon as the group before there is read. Weights of the
// first units are on their way before the kernel ahead has ended; then all rows' activations come to shared memory, once a block. A team's warps take
// turns to fold a unit's slices in order, y = fma(acc, 2^-e, y), while the others go on. Where an SM has one team, each warp has a helper beside
// it, which takes every second group and hands over what comes of it.
//
// Rows are repeated in the tensor core's 8 columns, so that lanes with outputs in common have the same sums: each adds up those of one output (of two,
// for two of 4 or 8 rows) and needs no other's scales. A short group is a whole one whose last blocks have activations of 0, and any codes.
#define TILES 1  // of 8 rows
#define UNIT_OUTPUTS (16 * ROW_TILES)
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"

#ifndef HELPERS
#define HELPERS (TEAMS == 1)
#endif
#ifndef FIRST
#define FIRST STAGES
#endif
#define MEMBERS (TEAMS * (1 + HELPERS))  // warps of a slice
#define RINGS (SLICES * TEAMS)
#define WARPS (RINGS * (1 + HELPERS))
// Of a group: what a tile and a unit take, how far on a slice's next one lies, what is one warp's, what activations take.
#define TILE_BYTES (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES)
#define RUN_BYTES (ROW_TILES * TILE_BYTES)
#define NEXT_RUN (SLICES * 2 * TILE_BYTES)
#define GROUP_PARTS (GROUP_BLOCKS * PARTS)
#define PLANES_BYTES (GROUP_BLOCKS * PLANES * MOST_ROWS * 64)
#define SUMS_BYTES (HAS_MINIMUM * MOST_ROWS * 32)
// What a group adds to each of a lane's sums, each with a scale of its own: its chain and its minima, or the chains of its parts.
#define TERMS (GROUP_CHAINS ? SCALE_PLANES : GROUP_PARTS)
// What a lane adds up.
#define OWN_OUTPUTS (MOST_ROWS <= 2 ? 1 : 2)
#define OWN_ROWS (MOST_ROWS == 1 ? 1 : 2)
#define OWN_COUNT (OWN_OUTPUTS * OWN_ROWS)
#define SLICE_SUMS (32 * OWN_COUNT)
#define HELP_BYTES (TERMS * SLICE_SUMS * 4)

typedef Pipe<STAGES, RUN_BYTES> WeightPipe;                     // a warp's
typedef Pipe<2, SLICES * SLICE_SUMS * sizeof(float)> SumsPipe;  // a team's
typedef float OwnSums[OWN_OUTPUTS][OWN_ROWS];
typedef OwnSums Terms[TERMS];

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
  METHOD void pick_all(OwnSums& to, const float (&s)[ROW_TILES][1][4]) const {
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int n = 0; n < OWN_ROWS; n++) to[o][n] = pick(s, o, n);
  }
};

// All rows of whole groups, in shared memory: planes [block][plane][row][64 bytes], sums [group][hi, lo][row][8 halves of blocks]. What is missing
// is 0.
struct Rows {
  u32 planes, sums;

  // A warp asks for a group.
  METHOD void ask(const Activation& a, int group, int blocks, int rows) const {
    const int lane = threadIdx.x & 31;
    UNROLL for (int i = lane; i < PLANES_BYTES / 16; i += 32) {
      const int row = i / 4 % MOST_ROWS, plane = i / (4 * MOST_ROWS) % PLANES, block = group * GROUP_BLOCKS + i / (4 * MOST_ROWS * PLANES);
      copy16_or_zero(planes + group * PLANES_BYTES + i * 16, fragments_at(a, block, 0) + plane * a.plane_bytes() + row * ROW_BYTES + i % 4 * 16, row < rows && block < blocks);
    }
    if (HAS_MINIMUM && lane < 2 * MOST_ROWS) {
      const int row = lane % MOST_ROWS, plane = lane / MOST_ROWS;
      copy16_or_zero(sums + group * SUMS_BYTES + lane * 16, group_sums_at(a, group, 0) + plane * (GROUP_SUM_BYTES / 2) + row * 16, row < rows);
    }
  }
  // One of a slice's warps asks for its share of the slice's groups; every lane arrives once they are here.
  METHOD void ask_share(const Activation& a, int slice, int member, int blocks, int rows, u32 barrier) const {
    for (int group = slice + SLICES * member; group * GROUP_BLOCKS < blocks; group += SLICES * MEMBERS) ask(a, group, blocks, rows);
    arrive_behind_copies(barrier);
  }
  METHOD void advance() {
    planes += SLICES * PLANES_BYTES;
    sums += SLICES * SUMS_BYTES;
  }
};

// What a lane's terms of a group are multiplied by.
struct Scales {
  float of[OWN_OUTPUTS][TERMS];

  METHOD Scales(u32 head, const Own& own) {
    const int g = (threadIdx.x & 31) >> 2;
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++) {
        const int place = (g * SCALE_PLANES + plane) * 2 + own.output + o;
        const float unit = f32_of_f16(shared_at<u16>(head + FACTORS_BYTES + place * 2));
#if GROUP_CHAINS
        of[o][plane] = unit * (plane == 0 ? 16384.f : 16.f);
#else
        UNROLL for (int part = 0; part < PARTS; part++) {
          const u32 word = shared_at<u32>(head + (place * PARTS + part) * 4);
          UNROLL for (int i = 0; i < 4; i++) of[o][4 * part + i] = scale_of_byte(unit, word, i);
        }
#endif
      }
  }
};

// Block q's activations, which all rows' columns share.
DEVICE void load_columns(Columns (&x)[1], const Rows& rows, int q) {
  const int lane = threadIdx.x & 31;
  const u32 planes = rows.planes + (lane >> 2) % MOST_ROWS * 64 + lane % 4 * 16;
  UNROLL for (int plane = 0; plane < PLANES; plane++) x[0].planes[plane] = shared_at<uint4>(planes + (q * PLANES + plane) * (MOST_ROWS * 64));
}

DEVICE Words lane_words(u32 tile, int q) { return shared_at<Words>(tile + HEAD_BYTES + q * RECORD_BYTES + (threadIdx.x & 31) * sizeof(Words)); }

// What a lane has of a group; the second tile begins `tile_bytes` behind the first.
#if GROUP_CHAINS
DEVICE void make_terms(Terms& terms, const Own& own, u32 slot, u32 tile_bytes, const Rows& rows, u32 offset) {
  const int lane = threadIdx.x & 31, t = lane & 3;
  Head heads[ROW_TILES];
  UNROLL for (int r = 0; r < ROW_TILES; r++)
    UNROLL for (int i = 0; i < HEAD_WORDS / 4; i++) *(uint4*)(heads[r].words + 4 * i) = shared_at<uint4>(slot + r * tile_bytes + (lane >> 2) * (HEAD_WORDS * 4) + 16 * i);
  float s[ROW_TILES][1][4] = {};
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    Record w[ROW_TILES];
    Columns x[1];
    load_columns(x, rows, q);
    UNROLL for (int r = 0; r < ROW_TILES; r++) widen(w[r].codes, lane_words(slot + r * tile_bytes, q), heads[r].factors(q), offset);
    chain_part(s, w, x, 0);
  }
  own.pick_all(terms[0], s);
#if HAS_MINIMUM
  const u32 sums = rows.sums + (lane >> 2) % MOST_ROWS * 16 + t * 4;
  const u32 high = shared_at<u32>(sums), low = shared_at<u32>(sums + MOST_ROWS * 16);
  float minima[ROW_TILES][1][4] = {};
  UNROLL for (int r = 0; r < ROW_TILES; r++) {
    const u32 above = heads[r].minima(0, t), below = heads[r].minima(1, t);
    multiply_f16(minima[r][0], above, below, above, below, high, low);
  }
  own.pick_all(terms[1], minima);
#endif
}
#else
DEVICE void make_terms(Terms& terms, const Own& own, u32 slot, u32 tile_bytes, const Rows& rows, u32 offset) {
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    Record w[ROW_TILES];
    Columns x[1];
    load_columns(x, rows, q);
    UNROLL for (int r = 0; r < ROW_TILES; r++) widen(w[r].codes, lane_words(slot + r * tile_bytes, q), offset);
    UNROLL for (int part = 0; part < PARTS; part++) {
      float s[ROW_TILES][1][4] = {};
      chain_part(s, w, x, part);
      own.pick_all(terms[q * PARTS + part], s);
    }
  }
}
#endif

DEVICE void add_terms(OwnSums& acc, const Terms& terms, const Scales& scales) {
  UNROLL for (int i = 0; i < TERMS; i++)
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int n = 0; n < OWN_ROWS; n++) acc[o][n] = fmaf(terms[i][o][n], scales.of[o][i], acc[o][n]);
}

// A helper's terms, and how they are taken once the slot's second barrier says so.
DEVICE void hand_over(const Terms& terms, const WeightPipe& pipe, u32 help) {
  UNROLL for (int i = 0; i < TERMS * OWN_COUNT; i++) put_shared(help + i * 128, (&terms[0][0][0])[i]);
  end_plain_reads();
  arrive(pipe.filled() + 8);
}

DEVICE void take_over(Terms& terms, const WeightPipe& pipe, u32 help) {
  wait_barrier(pipe.filled() + 8, pipe.phase);
  UNROLL for (int i = 0; i < TERMS * OWN_COUNT; i++) (&terms[0][0][0])[i] = shared_at<float>(help + i * 128);
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
  __shared__ u64 barriers[2 * (RINGS * STAGES + TEAMS * 2) + SLICES];
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
  const u32 rows_here = shared_address(barriers + 2 * (RINGS * STAGES + TEAMS * 2) + slice);
  if (lane == 0 && !is_helper) {
    if (team == 0) set_barrier(rows_here, 32 * MEMBERS);
    weights.set(32);  // a slot's second barrier is for the helper's lanes: who reads a slot fills it anew, and needs none
    if (slice == 0) sums_pipe.set(1, 32 * SLICES);
  }
  __syncwarp();
  WeightPipe filling = weights;
  _Pragma("unroll 1") for (int stage = 0; stage < FIRST; stage++, filling.pass()) feed.fill(filling, parts, p, slice);
  __syncthreads();  // barriers stand
  if (!BESIDE) await_previous();
  let_next_start();  // behind the wait: a product beside this one takes the same activations, and does not wait for them
  const Activation a = activation_at(activation, blocks, COLUMNS);
  const u32 scales = shared_address(all_sums + TEAMS * 2 * SLICES * SLICE_SUMS * 4) + team * (SLICES * MOST_ROWS * 4);
  const u32 first_planes = shared_address(all_sums + TEAMS * (2 * SLICES * SLICE_SUMS + SLICES * MOST_ROWS) * 4), first_sums = first_planes + groups * PLANES_BYTES;
  const u32 first_help = first_sums + groups * SUMS_BYTES + ring * (STAGES / 2 * HELP_BYTES) + lane * 4;
  Rows{first_planes, first_sums}.ask_share(a, slice, HELPERS ? is_helper : team, blocks, rows, rows_here);
  if (lane < MOST_ROWS && !is_helper) put_shared(scales + (slice * MOST_ROWS + lane) * 4, __ldcg(a.scales + slice * COLUMNS + lane));
  _Pragma("unroll 1") for (int stage = FIRST; stage < STAGES; stage++, filling.pass()) feed.fill(filling, parts, p, slice);
  wait_barrier(rows_here, 0);
  const int* logits_slots = domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr;
  const Own own;
  for (int unit = first_unit, fold_turn = slice; unit < p.units(); unit += gridDim.x * TEAMS, fold_turn = (fold_turn + SLICES - 1) % SLICES) {
    const Unit at = p.at(unit);
    const u32 offset = code_offset(parts.part[at.part].zero);
    OwnSums acc = {};
    Rows x = {first_planes + slice * PLANES_BYTES, first_sums + slice * SUMS_BYTES};
    for (int left = most; left > 0; left -= SLICES * GROUP_BLOCKS) {
      const bool is_helped = HELPERS && weights.stage % 2;
      const u32 tile_bytes = left >= GROUP_BLOCKS ? TILE_BYTES : group_bytes(left), help = first_help + weights.stage / 2 * HELP_BYTES;
      Terms terms;
      weights.wait();
      if (is_helped == is_helper) make_terms(terms, own, weights.slot(), tile_bytes, x, offset);
      if (!is_helper) {
        const Scales of_terms(weights.slot() + own.tile * tile_bytes, own);
        if (is_helped) take_over(terms, weights, help);
        add_terms(acc, terms, of_terms);
        end_plain_reads();
        __syncwarp();
        feed.fill(weights, parts, p, slice);
      } else if (is_helped) hand_over(terms, weights, help);
      weights.pass();
      x.advance();
    }
    if (is_helper) continue;
    const SumsPipe kept = sums_pipe;
    keep_sums(sums_pipe, slice, acc);
    if (fold_turn == 0) fold_unit(kept, parts.part[at.part], at.tile, scales, own, rows, logits_slots);
  }
  if (BESIDE) await_previous();
}
