// Attention over f16 pages. A block = a page = 64 tokens at absolute positions. For one query row and block, in units of log2 e:
//
//   s = chain of k16 tensor-core steps over dims: q_hi k, q_lo k, next step       (q scale log2(e) = q_hi + q_lo in f16)
//   m = largest s; p = 2^(s - m) = p_hi + p_lo; l, O = chains over tokens: p_hi (1, v), p_lo (1, v), next step
//
// 8 blocks fold into a group, groups into the row, ascending from nothing: a function of the row's position and pages alone.
// A block of 4 warps takes a unit: up to 8 columns (rows of one session x query heads of one kv head) against a run of blocks, and leaves either
// the finished rows or the state of one chunk (a block, or a group) for attention_fold. Tokens and dims are the rows of the products.
#include "pages.cuh"
#include "ring.cuh"
#include "softmax.cuh"
#include "step.cuh"

#define STEPS (HEAD_DIM / 16)
#define WARP_TILES ((HEAD_DIM + 63) / 64)
#define HALF_BYTES (PAGE_TOKENS * HEAD_DIM * 2)
#define P_STRIDE 72

DEVICE void load_matrices(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

DEVICE void load_transposed(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

struct Unit {
  int row, rows, block, blocks, chunk, fresh, kv_head, first_head, heads;
};

struct State {
  float m[2], l[2], o[WARP_TILES][4];
  METHOD void clear() {
    UNROLL for (int e = 0; e < 2; e++) m[e] = MINUS_INFINITY, l[e] = 0.f;
    UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = 0; i < 4; i++) o[n][i] = 0.f;
  }
  METHOD void fold(const State& other) {
    Weights w[2];
    UNROLL for (int e = 0; e < 2; e++) w[e] = absorb(m[e], other.m[e]), l[e] = folded(l[e], other.l[e], w[e]);
    UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = 0; i < 4; i++) o[n][i] = folded(o[n][i], other.o[n][i], w[i & 1]);
  }
};

typedef Ring<128, STAGES, HALF_BYTES> HalfRing;

// What every unit of a launch shares.
struct Geometry {
  const u8* layer;
  const int* step;
  int kv_heads, group, head_tiles, items;

  METHOD Unit at(int item) const {
    const int* words = step + step[UNITS_AT] + item / (kv_heads * head_tiles) * UNIT_WORDS;
    const int kv_head = item / head_tiles % kv_heads, first = item % head_tiles * 8;
    return {words[UNIT_ROW], words[UNIT_ROWS], words[UNIT_BLOCK], words[UNIT_BLOCKS], words[UNIT_CHUNK], words[UNIT_FRESH],
            kv_head, kv_head * group + first, min(8, group - first)};
  }
};

// Brings keys, values, keys, ... of the blocks of one unit after the other.
struct Feed {
  int item, half, halves, kv_head, page, old_halves;
  const int* pages;

  METHOD void open(const Geometry& g) {
    half = halves = 0;
    if (item >= g.items) return;
    const Unit unit = g.at(item);
    halves = 2 * unit.blocks;
    old_halves = 2 * (unit.fresh - unit.block);
    kv_head = unit.kv_head;
    pages = page_table(g.step, unit.row) + unit.block;
    page = pages[0];
  }

  // Whether the next half holds nothing that this step writes.
  METHOD bool is_old() const { return half < old_halves; }

  METHOD void next(HalfRing& ring, const Geometry& g) {
    if (half < halves) {
      ring.expect(HALF_BYTES);
      ring.copy(0, g.layer + (((size_t)page * g.kv_heads + kv_head) * 2 + (half & 1)) * HALF_BYTES, HALF_BYTES, GOES_FIRST);
      if (++half == halves) {
        item += gridDim.x;
        open(g);
      } else if (!(half & 1)) {
        page = pages[half >> 1];
      }
    }
    ring.filled();
  }
};

extern "C" __global__ void __launch_bounds__(128)
attention(const float* q, i64 q_stride, const u8* layer, float* out, i64 out_stride, float* partial_o, float2* partial_ml, int heads, int kv_heads, float scale,
          const int* step) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ __align__(16) float largest[8][4];
  __shared__ __align__(16) u16 weights[16][P_STRIDE];
  __shared__ u64 barriers[STAGES];
  let_next_start();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, r = lane >> 2;
  const int group = heads / kv_heads, head_tiles = (group + 7) / 8;
  const Geometry geometry = {layer, step, kv_heads, group, head_tiles, step[UNITS] * kv_heads * head_tiles};
  const int key_token = warp * 16 + (lane >> 4) * 8 + (lane & 7), key_chunk = (lane >> 3) & 1, value_token = lane & 15, value_chunk = lane >> 4;
  const int *positions = row_array(step, POSITIONS), *partials = row_array(step, PARTIALS), *chunk_blocks = row_array(step, CHUNK_BLOCKS);
  HalfRing ring(shared, barriers, threadIdx.x);
  __syncthreads();
  Feed feed = {(int)blockIdx.x};
  feed.open(geometry);
  bool waits = true;  // pages that this step does not write are on their way before the kernels ahead have ended
  for (int stage = 0; stage < STAGES - 1; stage++) {
    if (waits && !feed.is_old()) await_previous(), waits = false;
    feed.next(ring, geometry);
  }
  if (waits) await_previous();

  for (int item = blockIdx.x; item < geometry.items; item += gridDim.x) {
    const Unit unit = geometry.at(item);

    u32 query[STEPS][4];
    const int q_row = r / unit.heads, q_head = unit.first_head + r % unit.heads;
    const bool live = q_row < unit.rows;
    const float* from = q + (unit.row + q_row) * q_stride + q_head * HEAD_DIM + 2 * t;
    UNROLL for (int i = 0; i < STEPS; i++)
      UNROLL for (int j = 0; j < 2; j++) {
        const float2 v = live ? *(const float2*)(from + i * 16 + j * 8) : make_float2(0.f, 0.f);
        split(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), query[i][2 * j], query[i][2 * j + 1]);
      }
    int seen[2];
    UNROLL for (int e = 0; e < 2; e++) {
      const int row = (2 * t + e) / unit.heads;
      seen[e] = row < unit.rows ? positions[unit.row + row] : -1;
    }

    State total, running, block;
    total.clear();
    running.clear();
    for (int b = 0; b < unit.blocks; b++) {
      const int first_token = (unit.block + b) * PAGE_TOKENS;
      float c[4] = {0.f, 0.f, 0.f, 0.f};
      ring.wait();
      __syncthreads();
      feed.next(ring, geometry);
      u32 base = ring.slots + ring.take();
      UNROLL for (int i = 0; i < STEPS; i++) {
        u32 k[4];
        load_matrices(k, base + chunk_at(HEAD_DIM, key_token, 2 * i + key_chunk));
        multiply_f16(c, k[0], k[2], k[1], k[3], query[i][0], query[i][2]);
        multiply_f16(c, k[0], k[2], k[1], k[3], query[i][1], query[i][3]);
      }
      UNROLL for (int e = 0; e < 2; e++) {
        const int token = first_token + warp * 16 + r;
        if (token > seen[e]) c[e] = MINUS_INFINITY;
        if (token + 8 > seen[e]) c[2 + e] = MINUS_INFINITY;
        float m = fmaxf(c[e], c[2 + e]);
        UNROLL for (int far = 4; far < 32; far *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, far));
        if (r == 0) largest[2 * t + e][warp] = m;
      }
      __syncthreads();
      UNROLL for (int e = 0; e < 2; e++) {
        const float4 v = *(const float4*)largest[2 * t + e];
        block.m[e] = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
        const float m = block.m[e] == MINUS_INFINITY ? 0.f : block.m[e];
        u32 high, low;
        split(power_of_2(__fsub_rn(c[e], m)), power_of_2(__fsub_rn(c[2 + e], m)), high, low);
        u16* to = &weights[2 * t + e][warp * 16 + r];
        to[0] = (u16)high, to[8] = (u16)(high >> 16);
        to[8 * P_STRIDE] = (u16)low, to[8 * P_STRIDE + 8] = (u16)(low >> 16);
      }
      ring.wait();
      __syncthreads();
      feed.next(ring, geometry);
      base = ring.slots + ring.take();
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      UNROLL for (int n = 0; n < WARP_TILES; n++) UNROLL for (int i = 0; i < 4; i++) block.o[n][i] = 0.f;
      UNROLL for (int k = 0; k < 4; k++) {
        const u32 *high = (const u32*)&weights[r][k * 16 + 2 * t], *low = high + 8 * P_STRIDE / 2;
        UNROLL for (int n = 0; n < WARP_TILES; n++) {
          const int tile = warp + 4 * n;
          if (tile >= STEPS) break;
          u32 v[4];
          load_transposed(v, base + chunk_at(HEAD_DIM, k * 16 + value_token, 2 * tile + value_chunk));
          multiply_f16(block.o[n], v[0], v[2], v[1], v[3], high[0], high[4]);
          multiply_f16(block.o[n], v[0], v[2], v[1], v[3], low[0], low[4]);
        }
        multiply_f16(sums, ONES, ONES, ONES, ONES, high[0], high[4]);
        multiply_f16(sums, ONES, ONES, ONES, ONES, low[0], low[4]);
      }
      block.l[0] = sums[0], block.l[1] = sums[1];
      running.fold(block);
      if (unit.chunk < 0 && ((unit.block + b) % 8 == 7 || b == unit.blocks - 1)) {
        total.fold(running);
        running.clear();
      }
    }

    UNROLL for (int e = 0; e < 2; e++) {
      const int column = 2 * t + e, row = unit.row + column / unit.heads, head = unit.first_head + column % unit.heads;
      if (column / unit.heads >= unit.rows) continue;
      const bool whole = unit.chunk < 0;
      if (!whole && unit.chunk * chunk_blocks[row] * PAGE_TOKENS > positions[row]) continue;
      const i64 part = (i64)(whole ? 0 : partials[row] + unit.chunk) * heads + head;
      float* to = whole ? out + row * out_stride + head * HEAD_DIM : partial_o + part * HEAD_DIM;
      const float inverse = whole ? __fdiv_rn(1.f, total.l[e]) : 1.f;
      if (!whole && warp == 0 && r == 0) partial_ml[part] = make_float2(running.m[e], running.l[e]);
      UNROLL for (int n = 0; n < WARP_TILES; n++) {
        const int dim = (warp + 4 * n) * 16 + r;
        if (dim >= HEAD_DIM) break;
        to[dim] = __fmul_rn(whole ? total.o[n][e] : running.o[n][e], inverse);
        to[dim + 8] = __fmul_rn(whole ? total.o[n][2 + e] : running.o[n][2 + e], inverse);
      }
    }
  }
}
