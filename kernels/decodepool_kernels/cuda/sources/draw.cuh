// Tokens drawn by the program that engine/device_sampling.py tells. A cluster of CLUSTER blocks holds a row's weights in registers: integers, so
// that every sum is the same in any order. A cut (the k largest, a share of the sum) is found by bisection, for each step of which the blocks meet,
// until few weights are left to choose from; the token at a running sum by the one block that has it.
#pragma once
#include "common.cuh"
#include "step.cuh"

#define THREADS 1024
#define WEIGHT_BITS 44
#define ID_BITS 18
#define LOCAL_ID_BITS (CLUSTER > 1 ? 15 : ID_BITS)
#define HAS_SHARE 2

// Without a cluster a thread has too many weights for its registers.
#if ITEMS > 40
#define EACH _Pragma("unroll 1")
#else
#define EACH UNROLL
#endif

struct Draw {
  double temperature;
  u64 seed, least;
  u32 position, top_k, share, used;
};

#define CANDIDATES 256
#define SHARERS (THREADS / CANDIDATES)

struct Total {
  u64 sum;
  u32 count;
};

struct Shared {
  u64 warp_sums[2][32], block_sums[2][CLUSTER], block_counts[2][CLUSTER];
  u32 warp_counts[2][32];
  u64 own_count, own[CANDIDATES], all[CANDIDATES], larger[SHARERS][CANDIDATES];
  u32 equal[SHARERS][CANDIDATES];
  u64 least, before;
  u32 equals;
};

// The sum over a warp of values below 2^57, in three parts of which 32 do not overflow.
DEVICE u64 warp_total(u64 value) {
  const u32 low = __reduce_add_sync(~0u, (u32)value & 0x3ffff), middle = __reduce_add_sync(~0u, (u32)(value >> 18) & 0x3ffff);
  return low + ((u64)middle << 18) + ((u64)__reduce_add_sync(~0u, (u32)(value >> 36)) << 36);
}

DEVICE u32 cluster_rank() { return blockIdx.x % CLUSTER; }

DEVICE void meet_cluster() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

#if CLUSTER > 1
DEVICE u32 remote_address(const u64& slot, u32 rank) {
  u32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(&slot)), "r"(rank));
  return remote;
}
#endif

// Write to where another block of the cluster has what this one has at `slot`, and read from there.
DEVICE void tell_block(u64& slot, u32 rank, u64 value) {
#if CLUSTER > 1
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(remote_address(slot, rank)), "l"(value) : "memory");
#else
  slot = value;
#endif
}

DEVICE u64 asked_of_block(const u64& slot, u32 rank) {
#if CLUSTER > 1
  u64 value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(remote_address(slot, rank)) : "memory");
  return value;
#else
  return slot;
#endif
}

// A cut through a row's weights: the least that is above it, the sum of all that are larger, and how many equal it.
struct Cut {
  u64 least, before;
  u32 equals;
};

struct Row {
  u64 weights[ITEMS];
  Shared& shared;
  int parity, turn;  // buffers alternate: a barrier of the block, or of the cluster, lies between two uses of one

  METHOD u32 local_id(int item) const { return item * THREADS + threadIdx.x; }
  METHOD u32 id(int item) const { return cluster_rank() * ITEMS * THREADS + local_id(item); }

  // What `of` adds up of each weight and its number in the thread.
  template <class Of> METHOD Total mine(Of of) const {
    Total sum = {0, 0};
    EACH for (int item = 0; item < ITEMS; ++item) of(sum, weights[item], item);
    return sum;
  }

  // The sum over every thread of the block, known to each.
  METHOD Total block_total(Total value) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    parity ^= 1;
    value = {warp_total(value.sum), __reduce_add_sync(~0u, value.count)};
    if (lane == 0) shared.warp_sums[parity][warp] = value.sum, shared.warp_counts[parity][warp] = value.count;
    __syncthreads();
    return {warp_total(shared.warp_sums[parity][lane]), __reduce_add_sync(~0u, shared.warp_counts[parity][lane])};
  }

  // The sum over every thread of the cluster, known to each; what each block has of it stays in `block_sums[turn]`.
  METHOD Total total(Total value) {
    value = block_total(value);
    turn ^= 1;
    if (threadIdx.x < CLUSTER) {
      tell_block(shared.block_sums[turn][cluster_rank()], threadIdx.x, value.sum);
      tell_block(shared.block_counts[turn][cluster_rank()], threadIdx.x, value.count);
    }
    __syncwarp();
    meet_cluster();
    value = {0, 0};
    UNROLL for (int rank = 0; rank < CLUSTER; ++rank) value.sum += shared.block_sums[turn][rank], value.count += (u32)shared.block_counts[turn][rank];
    return value;
  }

  METHOD u64 sum() {
    return total(mine([](Total& sum, u64 w, int) { sum.sum += w; })).sum;
  }

  // The largest number of `bits` bits for which `holds`, which holds for 0 and no more once it does not.
  template <class Holds> METHOD u32 largest(int bits, Holds holds) {
    u32 found = 0;
    for (int bit = bits - 1; bit >= 0; --bit)
      if (holds(found | 1u << bit)) found |= 1u << bit;
    return found;
  }

  // The largest weight at which the sum of all that are not below reaches `target`: sums of weights, or of ones. Its bits are found from the top
  // until few weights are left that it may be; every block then gets those, and needs nobody for the rest.
  template <bool BY_WEIGHT> METHOD Cut cut(u64 target) {
    u64 found = 0, before = 0;
    u32 reached = ITEMS * THREADS * CLUSTER, passed = 0;
    int bit = WEIGHT_BITS;
    for (; bit >= 0 && reached - passed > CANDIDATES; --bit) {
      const u64 tried = found | 1ull << bit;
      const Total above = total(mine([&](Total& sum, u64 w, int) {
        sum.sum += w >= tried ? (BY_WEIGHT ? w : 1) : 0;
        sum.count += w >= tried;
      }));
      if (above.sum >= target)
        found = tried, reached = above.count;
      else
        before = above.sum, passed = above.count;
    }
    if (reached - passed > CANDIDATES) return {found, before, reached - passed};
    return cut_among<BY_WEIGHT>(target, before, gathered(found, found + (1ull << (bit + 1))));
  }

  // The same among `count` weights in `shared.all`; `before` is the sum of all that are larger than these.
  template <bool BY_WEIGHT> METHOD Cut cut_among(u64 target, u64 before, u32 count) {
    const u32 place = threadIdx.x % CANDIDATES, sharer = threadIdx.x / CANDIDATES;
    const u64 weight = place < count ? shared.all[place] : 0;
    u64 larger = 0;
    u32 equal = 0;
    for (u32 other = sharer; other < count; other += SHARERS) {
      const u64 w = shared.all[other];
      larger += w > weight ? (BY_WEIGHT ? w : 1) : 0;
      equal += w == weight;
    }
    shared.larger[sharer][place] = larger, shared.equal[sharer][place] = equal;
    __syncthreads();
    if (threadIdx.x < count) {
      larger = before, equal = 0;
      UNROLL for (int other = 0; other < SHARERS; ++other) larger += shared.larger[other][place], equal += shared.equal[other][place];
      if (larger < target && larger + (BY_WEIGHT ? weight : 1) * equal >= target) shared.least = weight, shared.before = larger, shared.equals = equal;
    }
    __syncthreads();
    return {shared.least, shared.before, shared.equals};
  }

  // Bring the weights from `found` on and below `end` to every block, in any order; return how many there are.
  METHOD u32 gathered(u64 found, u64 end) {
    if (threadIdx.x == 0) shared.own_count = 0;  // whoever read it last has met everybody since
    __syncthreads();
    EACH for (int item = 0; item < ITEMS; ++item)
      if (weights[item] >= found && weights[item] < end) shared.own[atomicAdd(&shared.own_count, 1ull)] = weights[item];
    meet_cluster();
    u32 count = 0;
    UNROLL for (u32 rank = 0; rank < CLUSTER; ++rank) {
      const u32 theirs = (u32)asked_of_block(shared.own_count, rank);
      if (threadIdx.x < theirs) shared.all[count + threadIdx.x] = asked_of_block(shared.own[threadIdx.x], rank);
      count += theirs;
    }
    __syncthreads();
    return count;
  }

  // Drop what is below a cut, and all but the first `equals` of those that equal it.
  METHOD void keep(const Cut& cut, u64 equals) {
    u32 last = ~0u;
    if (cut.equals > equals)
      last = largest(ID_BITS, [&](u32 tried) {
        return total(mine([&](Total& sum, u64 w, int item) { sum.count += w == cut.least && id(item) < tried; })).count < equals;
      });
    EACH for (int item = 0; item < ITEMS; ++item)
      if (weights[item] < cut.least || (weights[item] == cut.least && id(item) > last)) weights[item] = 0;
  }

  METHOD void keep_largest(u64 count) {
    const Cut found = cut<false>(count);
    keep(found, count - found.before);
  }

  METHOD void keep_share(u64 share) {
    const u64 all = sum();
    const u64 part = (all >> 32) * share + ((all & 0xffffffffu) * share >> 32);
    const u64 target = part ? part : 1;
    const Cut found = cut<true>(target);
    keep(found, (target - found.before + found.least - 1) / found.least);
  }

  // Whether this block has the token at which the running sum exceeds what 64 bits pick of all; `token` is that then.
  METHOD bool has_drawn(u64 bits, u32& token) {
    u64 wanted = __umul64hi(bits, sum());
    u32 owner = 0;
    for (; owner < CLUSTER - 1 && wanted >= shared.block_sums[turn][owner]; ++owner) wanted -= shared.block_sums[turn][owner];
    if (owner != cluster_rank()) return false;
    token = owner * ITEMS * THREADS + largest(LOCAL_ID_BITS, [&](u32 tried) {
      return block_total(mine([&](Total& sum, u64 w, int item) { sum.sum += local_id(item) < tried ? w : 0; })).sum <= wanted;
    });
    return true;
  }
};

// 2^44 e^x for x = (logit - largest) / temperature, rounded down.
DEVICE u64 weight_of(float logit, double largest, double temperature) {
  const double x = fmax(((double)logit - largest) / temperature, -0x1.62e42fefa39efp+5);
  const double turns = rint(x * 0x1.71547652b82fep+0);
  const double r = x - turns * 0x1.62e42feep-1 - turns * 0x1.a39ef35793c76p-33;
  double power = 1.0 / 3628800.0;
  power = power * r + 1.0 / 362880.0;
  power = power * r + 1.0 / 40320.0;
  power = power * r + 1.0 / 5040.0;
  power = power * r + 1.0 / 720.0;
  power = power * r + 1.0 / 120.0;
  power = power * r + 1.0 / 24.0;
  power = power * r + 1.0 / 6.0;
  power = power * r + 0.5;
  power = power * r + 1.0;
  power = power * r + 1.0;
  return (u64)(power * __longlong_as_double((i64)((int)turns + WEIGHT_BITS + 1023) << 52));
}

// The first 64 bits of Philox4x32-10 at a position of a stream.
DEVICE u64 random_bits(u64 seed, u32 position) {
  u32 c0 = position, c1 = 0, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u32 low_high = __umulhi(0xD2511F53u, c0), low = 0xD2511F53u * c0, high_high = __umulhi(0xCD9E8D57u, c2), high = 0xCD9E8D57u * c2;
    c0 = high_high ^ c1 ^ k0, c1 = high, c2 = low_high ^ c3 ^ k1, c3 = low;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return (u64)c0 << 32 | c1;
}

// One row, by every block of its cluster.
DEVICE void draw_row(const float* logits, i64 stride, int vocabulary, Answer* answers, const Draw* draws, const int* step, int* last_tokens) {
  __shared__ Shared shared;
  __shared__ Draw draw;
  await_previous();
  const int wanted = blockIdx.x / CLUSTER;
  const volatile u32* asked = (const volatile u32*)&draws[turn_of(step) * MAX_ROWS + wanted];
  if (threadIdx.x < sizeof(Draw) / 4) ((u32*)&draw)[threadIdx.x] = asked[threadIdx.x];
  __syncthreads();
  if (!draw.used) return;
  meet_cluster();  // nobody writes to a block that has not begun
  const int slot = row_array(step, WANTED_SLOTS)[wanted];
  const float* row = logits + slot * stride;
  const double largest = row[last_tokens[slot]];  // the best token's: argmax is ahead
  Row held = {{}, shared, 0, 0};
  EACH for (int item = 0; item < ITEMS; ++item) {
    const u32 id = held.id(item);
    held.weights[item] = id < vocabulary ? weight_of(row[id], largest, draw.temperature) : 0;
  }
  if (draw.top_k && draw.top_k < vocabulary) held.keep_largest(draw.top_k);
  if (draw.used & HAS_SHARE) held.keep_share(draw.share);
  EACH for (int item = 0; item < ITEMS; ++item)
    if (held.weights[item] < draw.least) held.weights[item] = 0;
  u32 token;
  if (held.has_drawn(random_bits(draw.seed, draw.position), token) && threadIdx.x == 0) {
    answers_of(answers, step)[wanted].drawn = token;
    if (token < vocabulary) last_tokens[slot] = token;  // of logits that are not finite nothing can be drawn
  }
  meet_cluster();  // nor to one that has ended
}
