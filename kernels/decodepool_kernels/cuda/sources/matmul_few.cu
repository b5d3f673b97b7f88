// out = W x (+ bias) of up to MOST_ROWS rows (1, 2, 4, or 8 with ROW_TILES 1) and a k-quant on sm_90. A unit is ROW_TILES x 16 outputs and a team's of
// 8 warps, each with a slice of K: its groups come to a ring of the warp's own, to a slot as soon as the group before there is read. A warp's first
// group is on its way before the kernel ahead has ended; then a slice's warps ask for its activations, which would come late behind more weights, and
// for the groups that the ring has room for. While all that comes a warp takes its first group into registers. A team's warps take turns to fold a
// unit's slices in order, y = fma(acc, 2^-e, y), while the others go on.
//
// Rows are repeated in the tensor core's 8 columns, so that lanes with outputs in common have the same sums: each adds up those of one output (of two,
// for two of 4 or 8 rows) and needs no other's scales. A short group is a whole one whose last blocks have activations of 0, and any codes.
//
// BESIDE: the product ahead takes the same activations, which are in the L2, where they are read, as soon as it lets this one start: it has waited for
// them, or one ahead of it has. So the two run side by side.
#define TILES 1  // of 8 rows
#define UNIT_OUTPUTS (16 * ROW_TILES)
#include "fold.cuh"
#include "parts.cuh"
#include "pipe.cuh"
#include "step.cuh"

#define WARPS (SLICES * TEAMS)
// Of a group: what a tile and a unit take, how far on a slice's next one lies, what activations take.
#define TILE_BYTES (HEAD_BYTES + GROUP_BLOCKS * RECORD_BYTES)
#define RUN_BYTES (ROW_TILES * TILE_BYTES)
#define NEXT_RUN (SLICES * 2 * TILE_BYTES)
#define PLANES_BYTES (GROUP_BLOCKS * PLANES * MOST_ROWS * 64)
#define SUMS_BYTES (HAS_MINIMUM * MOST_ROWS * 32)
// What a group adds to each of a lane's sums, each with a scale of its own: its chain and its minima, or the chains of its parts.
#define TERMS (GROUP_CHAINS ? SCALE_PLANES : GROUP_BLOCKS * PARTS)
// What a lane adds up.
#define OWN_OUTPUTS (MOST_ROWS <= 2 ? 1 : 2)
#define OWN_ROWS (MOST_ROWS == 1 ? 1 : 2)
// A unit's sums of one slice, and of all; all slices' scales.
#define SLICE_SUMS (32 * OWN_OUTPUTS * OWN_ROWS)
#define UNIT_SUMS_BYTES (SLICES * SLICE_SUMS * 4)
#define ROW_SCALES_BYTES (SLICES * MOST_ROWS * 4)
// A block's barriers: of each warp's ring, of each team's sums, and one a slice for its activations.
#define SUMS_BARRIERS (2 * WARPS * STAGES)
#define ROWS_BARRIERS (SUMS_BARRIERS + 2 * 2 * TEAMS)

typedef Pipe<STAGES, RUN_BYTES> WeightPipe;  // a warp's
typedef Pipe<2, UNIT_SUMS_BYTES> SumsPipe;   // a team's
typedef float OwnSums[OWN_OUTPUTS][OWN_ROWS];

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

  // A warp asks for a group of all.
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
    for (int group = slice + SLICES * member; group * GROUP_BLOCKS < blocks; group += SLICES * TEAMS) ask(a, group, blocks, rows);
    arrive_behind_copies(barrier);
  }
  METHOD Rows from(int group) const { return {planes + group * PLANES_BYTES, sums + group * SUMS_BYTES}; }
  METHOD void advance() {
    planes += SLICES * PLANES_BYTES;
    sums += SLICES * SUMS_BYTES;
  }
};

// Block q's activations, which all rows' columns share.
DEVICE void load_columns(Columns (&x)[1], const Rows& rows, int q) {
  const int lane = threadIdx.x & 31;
  const u32 planes = rows.planes + (lane >> 2) % MOST_ROWS * 64 + lane % 4 * 16;
  UNROLL for (int plane = 0; plane < PLANES; plane++) x[0].planes[plane] = shared_at<uint4>(planes + (q * PLANES + plane) * (MOST_ROWS * 64));
}

// Where a group lies in a slot; the second tile begins `tile_bytes` behind the first.
struct Slot {
  u32 at, tile_bytes;

  METHOD Words words(int r, int q) const { return shared_at<Words>(at + r * tile_bytes + HEAD_BYTES + q * RECORD_BYTES + (threadIdx.x & 31) * sizeof(Words)); }
  METHOD void load_heads(Head (&heads)[ROW_TILES]) const {
    UNROLL for (int r = 0; r < ROW_TILES; r++)
      UNROLL for (int i = 0; GROUP_CHAINS && i < HEAD_WORDS / 4; i++)
        *(uint4*)(heads[r].words + 4 * i) = shared_at<uint4>(at + r * tile_bytes + ((threadIdx.x & 31) >> 2) * (HEAD_WORDS * 4) + 16 * i);
  }
};

// A group as a warp holds it: weights, the minima's factors, and what a lane's terms are multiplied by.
struct Group {
  Record w[GROUP_BLOCKS][ROW_TILES];
  u32 minima[ROW_TILES][2];
  float scales[OWN_OUTPUTS][TERMS];

  METHOD void take_block(const Slot& slot, const Head (&heads)[ROW_TILES], int q, u32 offset) {
    UNROLL for (int r = 0; r < ROW_TILES; r++) {
#if GROUP_CHAINS
      widen(w[q][r].codes, slot.words(r, q), heads[r].factors(q), offset);
#else
      widen(w[q][r].codes, slot.words(r, q), offset);
#endif
    }
  }
  METHOD void take_head(const Slot& slot, const Head (&heads)[ROW_TILES], const Own& own) {
    const int g = (threadIdx.x & 31) >> 2;
    const u32 head = slot.at + own.tile * slot.tile_bytes;
#if GROUP_CHAINS && HAS_MINIMUM
    UNROLL for (int r = 0; r < ROW_TILES; r++)
      UNROLL for (int i = 0; i < 2; i++) minima[r][i] = heads[r].minima(i, threadIdx.x & 3);
#endif
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int plane = 0; plane < SCALE_PLANES; plane++) {
        const int place = (g * SCALE_PLANES + plane) * 2 + own.output + o;
        const float unit = f32_of_f16(shared_at<u16>(head + FACTORS_BYTES + place * 2));
#if GROUP_CHAINS
        scales[o][plane] = unit * (plane == 0 ? 16384.f : 16.f);
#else
        UNROLL for (int part = 0; part < PARTS; part++) {
          const u32 word = shared_at<u32>(head + (place * PARTS + part) * 4);
          UNROLL for (int i = 0; i < 4; i++) scales[o][4 * part + i] = scale_of_byte(unit, word, i);
        }
#endif
      }
  }
  METHOD void take(const Slot& slot, const Own& own, u32 offset) {
    Head heads[ROW_TILES];
    slot.load_heads(heads);
    UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) take_block(slot, heads, q, offset);
    take_head(slot, heads, own);
  }
};

#if GROUP_CHAINS && HAS_MINIMUM
// The minima's step of a group.
DEVICE void multiply_minima(OwnSums& term, const Group& group, const Own& own, const Rows& rows) {
  const int lane = threadIdx.x & 31;
  const u32 sums = rows.sums + (lane >> 2) % MOST_ROWS * 16 + lane % 4 * 4;
  const u32 high = shared_at<u32>(sums), low = shared_at<u32>(sums + MOST_ROWS * 16);
  float s[ROW_TILES][1][4] = {};
  UNROLL for (int r = 0; r < ROW_TILES; r++) multiply_f16(s[r][0], group.minima[r][0], group.minima[r][1], group.minima[r][0], group.minima[r][1], high, low);
  own.pick_all(term, s);
}
#endif

DEVICE void clear(float (&s)[ROW_TILES][1][4]) {
  UNROLL for (int r = 0; r < ROW_TILES; r++)
    UNROLL for (int i = 0; i < 4; i++) s[r][0][i] = 0.f;
}

// acc += a group, which is held or taken from a slot block by block.
template <bool is_held> DEVICE void add_group(OwnSums& acc, Group& group, const Own& own, const Slot& slot, const Rows& rows, u32 offset) {
  OwnSums terms[TERMS];
  Head heads[ROW_TILES];
  if (!is_held) slot.load_heads(heads);
  float s[ROW_TILES][1][4];
  clear(s);
  UNROLL for (int q = 0; q < GROUP_BLOCKS; q++) {
    Columns x[1];
    load_columns(x, rows, q);
    if (!is_held) group.take_block(slot, heads, q, offset);
    UNROLL for (int part = 0; part < CHAINS; part++) {
      if (!GROUP_CHAINS) clear(s);
      chain_part(s, group.w[q], x, part);
      if (!GROUP_CHAINS) own.pick_all(terms[q * PARTS + part], s);
    }
  }
  if (!is_held) group.take_head(slot, heads, own);
#if GROUP_CHAINS
  own.pick_all(terms[0], s);
#if HAS_MINIMUM
  multiply_minima(terms[1], group, own, rows);
#endif
#endif
  UNROLL for (int i = 0; i < TERMS; i++)
    UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
      UNROLL for (int n = 0; n < OWN_ROWS; n++) acc[o][n] = fmaf(terms[i][o][n], group.scales[o][i], acc[o][n]);
}

// A slice's sums, for the warp that folds; every lane arrives with its own, and begins anew.
DEVICE void keep_sums(SumsPipe& pipe, int slice, OwnSums& acc) {
  const int lane = threadIdx.x & 31;
  const u32 to = pipe.slot() + (slice * SLICE_SUMS + lane) * 4;
  wait_barrier(pipe.filled() + 8, pipe.phase ^ 1);
  UNROLL for (int o = 0; o < OWN_OUTPUTS; o++)
    UNROLL for (int n = 0; n < OWN_ROWS; n++) put_shared(to + (o * OWN_ROWS + n) * 128, acc[o][n]), acc[o][n] = 0.f;
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

// One of a block's warps, and where what it shares lies: rings, sums of units, scales, activations.
struct Warp {
  int lane, ring, slice, team;
  WeightPipe weights;
  SumsPipe sums;
  u32 scales, rows_here;
  Rows rows;  // of all groups

  METHOD Warp(const u8* shared, const u64* barriers, int groups)
      : lane(threadIdx.x & 31), ring(threadIdx.x >> 5), slice(ring % SLICES), team(ring / SLICES),
        weights(shared + ring * STAGES * RUN_BYTES, barriers + 2 * STAGES * ring),
        sums(shared + WARPS * STAGES * RUN_BYTES + team * 2 * UNIT_SUMS_BYTES, barriers + SUMS_BARRIERS + 2 * 2 * team),
        rows_here(shared_address(barriers + ROWS_BARRIERS + slice)) {
    const u32 first_scales = shared_address(shared + WARPS * STAGES * RUN_BYTES + TEAMS * 2 * UNIT_SUMS_BYTES);
    scales = first_scales + team * ROW_SCALES_BYTES;
    rows.planes = first_scales + TEAMS * ROW_SCALES_BYTES;
    rows.sums = rows.planes + groups * PLANES_BYTES;
  }
  METHOD void set_barriers() const {
    if (lane == 0) {
      weights.set(1);  // who reads a slot fills it anew: nobody waits for its second barrier
      if (slice == 0) sums.set(1, 32 * SLICES);
      if (team == 0) set_barrier(rows_here, 32 * TEAMS);
    }
    __syncwarp();
  }
  // A group that lies in the slot whose turn it is, of which `left` blocks are there.
  METHOD Slot group(int left) const { return {weights.slot(), left >= GROUP_BLOCKS ? TILE_BYTES : (u32)group_bytes(left)}; }
  METHOD void refill(Feed& feed, const Parts& parts, const Product& p) {
    end_plain_reads();
    __syncwarp();
    feed.fill(weights, parts, p, slice);
    weights.pass();
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
matmul_few(const __grid_constant__ Parts parts, u8* activation, int blocks, const int* step, int domain) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 barriers[ROWS_BARRIERS + SLICES];
  Warp warp(shared, barriers, (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS);
  const int rows = step[domain], slice = warp.slice, most = blocks - slice * GROUP_BLOCKS, first_unit = blockIdx.x + gridDim.x * warp.team;
  const Product p(parts, blocks, 1);  // units are the same for all the rows there may be
  const bool has_groups = most > 0 && first_unit < p.units();
  Feed feed = {nullptr, has_groups ? first_unit : p.units(), 0};
  feed.find(parts, p, slice);
  warp.set_barriers();
  WeightPipe filling = warp.weights;
  feed.fill(filling, parts, p, slice);
  __syncthreads();  // barriers stand
  if (!BESIDE) await_previous();
  let_next_start();
  const Activation a = activation_at(activation, blocks, COLUMNS);
  warp.rows.ask_share(a, slice, warp.team, blocks, rows, warp.rows_here);
  const float scale = warp.lane < MOST_ROWS ? __ldcg(a.scales + slice * COLUMNS + warp.lane) : 0.f;
  _Pragma("unroll 1") for (int stage = 1; stage < STAGES; stage++) filling.pass(), feed.fill(filling, parts, p, slice);
  const Own own;
  const u32 offset = code_offset(parts.part[0].zero);  // the same in all parts: factored types have a kind each
  Group first;
  if (has_groups) {
    warp.weights.wait();
    first.take(warp.group(most), own, offset);
    warp.refill(feed, parts, p);
  }
  if (warp.lane < MOST_ROWS) put_shared(warp.scales + (slice * MOST_ROWS + warp.lane) * 4, scale);
  wait_barrier(warp.rows_here, 0);
  OwnSums acc = {};
  Rows x = warp.rows.from(slice);
  if (has_groups) add_group<true>(acc, first, own, {}, x, offset);
  int left = most - SLICES * GROUP_BLOCKS;  // of the unit's blocks, from the slice's next group on
  x.advance();
  const int* logits_slots = domain == WANTED ? row_array(step, WANTED_SLOTS) : nullptr;
  for (int unit = first_unit, fold_turn = slice; unit < p.units(); unit += gridDim.x * TEAMS, fold_turn = (fold_turn + SLICES - 1) % SLICES) {
    for (; left > 0; left -= SLICES * GROUP_BLOCKS, x.advance()) {
      Group group;
      warp.weights.wait();
      add_group<false>(acc, group, own, warp.group(left), x, offset);
      warp.refill(feed, parts, p);
    }
    const Unit at = p.at(unit);
    const SumsPipe kept = warp.sums;
    keep_sums(warp.sums, slice, acc);
    if (fold_turn == 0) fold_unit(kept, parts.part[at.part], at.tile, warp.scales, own, rows, logits_slots);
    x = warp.rows.from(slice);
    left = most;
  }
  if (BESIDE) await_previous();
}
