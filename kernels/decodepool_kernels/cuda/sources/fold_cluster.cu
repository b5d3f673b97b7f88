// What fold_quantise does, for few rows on sm_90, with the same bits: a cluster takes a slice of a row, a block of it 128 dims, a thread a dim. The states of
// ROUND chunks are on their way at once, for it is their latency that the fold takes; what they weigh is found by the warps side by side.
#include "cluster.cuh"
#include "partials.cuh"
#include "pipe.cuh"
#include "quantise.cuh"

#define ROUND 72  // a thread's registers hold so many states: 36k tokens in groups of 8 blocks
#define BATCHES ((ROUND + FOLD_CHUNKS - 1) / FOLD_CHUNKS)
#define WARPS (FOLD_DIMS / 32)

// What the chunks of a round weigh; the row's largest score before it, and after it where the next one looks.
struct Round {
  FoldTable batches[BATCHES];
  float largest[2][FOLD_HEADS];
};

// A task is a head and a batch of the round's chunks: a lane's chunk, and the largest score that lanes saw of the batches before.
struct Task {
  int nth, batch;
  float2 own;
  float before;

  METHOD Task(const Partials& p, const Chunks& chunks, int first, int begin, int task)
      : nth(task / BATCHES), batch(task % BATCHES), own(make_float2(MINUS_INFINITY, 0.f)), before(MINUS_INFINITY) {
    const int lane = threadIdx.x & 31, head = first / HEAD_DIM + nth;
    const float2* ml = p.ml + (i64)(chunks.first + begin + lane) * HEADS + head;
    UNROLL for (int i = 0; i < BATCHES; i++) {
      const int at = FOLD_CHUNKS * i + lane;
      if (head >= HEADS || at >= ROUND || begin + at >= chunks.count || (WINDOW && begin + at < chunks.unseen)) continue;
      if (i == batch) own = ml[FOLD_CHUNKS * i * HEADS];
      if (i < batch) before = fmaxf(before, ml[FOLD_CHUNKS * i * HEADS].x);
    }
  }

  METHOD void weigh(Round& round, const Chunks& chunks, int begin, bool is_odd) const {
    if (nth >= FOLD_HEADS || begin + FOLD_CHUNKS * batch >= chunks.count) return;
    float largest = begin == chunks.begin() ? before : fmaxf(before, round.largest[is_odd][nth]);
    UNROLL for (int far = 1; far < 32; far *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
    largest = weigh_chunks(round.batches[batch], nth, own, chunks.blocks == FOLDED_BLOCKS, largest);
    const bool is_last = batch == BATCHES - 1 || begin + FOLD_CHUNKS * (batch + 1) >= chunks.count;
    if (is_last && (threadIdx.x & 31) == 0) round.largest[!is_odd][nth] = largest;
  }
};

struct Total {
  float o, l;
  METHOD void fold(float other, float other_l, Weights w) { o = folded(o, other, w), l = folded(l, other_l, w); }

  // The chunks of a round, of which `count` are left: groups, or blocks that make groups. What is beyond them is nothing.
  METHOD void fold_round(const float (&values)[ROUND], const Round& round, int nth, int count, bool are_groups) {
    UNROLL for (int first = 0; first < ROUND; first += FOLDED_BLOCKS) {
      if (first >= count) break;
      const FoldTable& table = round.batches[first / FOLD_CHUNKS];
      Total group = {0.f, 0.f};
      UNROLL for (int i = 0; i < FOLDED_BLOCKS; i++) {
        const float4 w = table.chunks[nth][first % FOLD_CHUNKS + i];
        if (are_groups) fold(values[first + i], w.z, {w.x, w.y});
        else group.fold(values[first + i], w.z, {w.x, w.y});
      }
      if (!are_groups) fold(group.o, group.l, table.groups[nth][first % FOLD_CHUNKS / FOLDED_BLOCKS]);
    }
  }
};

// A thread's dim, of the 128 from `first` on.
DEVICE float folded_dim(const Partials& p, const Chunks& chunks, int first, const Switches& switches, Round& round) {
  const int dim = min(first + (int)threadIdx.x, WIDTH - 1), head = dim / HEAD_DIM, nth = head - first / HEAD_DIM, warp = threadIdx.x >> 5;
  const float* from = p.o + (i64)chunks.first * WIDTH + dim;
  Total total = {0.f, 0.f};
  bool is_odd = false;
  for (int begin = chunks.begin(); begin < chunks.count; begin += ROUND, is_odd = !is_odd) {
    const int left = chunks.count - begin;
    const Task task(p, chunks, first, begin, warp);
    asm volatile("" ::: "memory");  // scores are asked for first: they are waited for first
    const float* at = from + (i64)begin * WIDTH;
    float values[ROUND];
    UNROLL for (int i = 0; i < ROUND; i++) {
      if (i % FOLDED_BLOCKS == 0 && i >= left) break;
      values[i] = i < left && (!WINDOW || begin + i >= chunks.unseen) ? at[i * WIDTH] : 0.f;
    }
    __syncthreads();
    task.weigh(round, chunks, begin, is_odd);
    for (int more = warp + WARPS; more < FOLD_HEADS * BATCHES; more += WARPS) Task(p, chunks, first, begin, more).weigh(round, chunks, begin, is_odd);
    __syncthreads();
    total.fold_round(values, round, nth, left, chunks.blocks == FOLDED_BLOCKS);
  }
  if (SINKS) {
    float m = round.largest[is_odd][nth];
    total.o = folded(total.o, 0.f, switches.absorb_sink(m, total.l, head));
  }
  return __fmul_rn(total.o, __fdiv_rn(1.f, total.l));
}

// Where the largest magnitudes of a slice meet: every block of the cluster gets those of all.
struct Meeting {
  float largest[GROUPS];
  u64 there;

  METHOD void open() {
    if (threadIdx.x == 0) {
      set_barrier(shared_address(&there), 1);
      show_barriers();
      arrive_expecting(shared_address(&there), sizeof(largest));
    }
    __syncwarp();
    meet_blocks();
  }

  // By one warp; a block alone has nobody to tell.
  METHOD float largest_of_cluster(float own, int rank) {
    if (GROUPS == 1) return own;
    const int lane = threadIdx.x & 31;
    if (lane < GROUPS) send(address_in(shared_address(&largest[rank]), lane), own, address_in(shared_address(&there), lane));
    wait_barrier(shared_address(&there), 0);
    return warp_largest(lane < GROUPS ? largest[lane] : 0.f);
  }
};

extern "C" __global__ void __launch_bounds__(FOLD_DIMS, 4) __cluster_dims__(GROUPS, 1, 1)
fold_cluster(const float* partial_o, const float2* partial_ml, const float* out, i64 stride, u8* target, int columns, const int* step, Switches switches) {
  __shared__ Round round;
  __shared__ __align__(16) float dims[FOLD_DIMS];
  __shared__ Meeting meeting;
  meeting.open();
  let_next_start();
  const int row = blockIdx.y, rank = blockIdx.x % GROUPS, lane = threadIdx.x & 31;
  const bool is_live = row < step[ROWS];
  const Chunks chunks(step, row, switches);
  const Hold h = {(int)blockIdx.x / GROUPS, rank, GROUPS};
  await_previous();
  if (!is_live) return;
  float4 v[ITEMS];
  if (chunks.blocks == 0) {
    hold(v, h, WIDTH, [=](int k) { return *(const float4*)(out + row * stride + k); });
  } else {
    UNROLL for (int i = 0; i < ITEMS; i++) {
      const int k = h.at(i), first = k - 4 * lane;
      v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (first >= WIDTH) continue;
      dims[threadIdx.x] = folded_dim({partial_o, partial_ml}, chunks, first, switches, round);
      __syncthreads();
      if (k < WIDTH) v[i] = *(const float4*)(dims + 4 * lane);
    }
  }
  if (threadIdx.x >= 32) return;
  const float largest = meeting.largest_of_cluster(largest_held(v), rank);
  quantise_held(v, h, largest, WIDTH, row, activation_at(target, WIDTH / 32, columns));
}
