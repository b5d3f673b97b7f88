// Tokens drawn by the program that engine/device_sampling.py tells. A cluster of CLUSTER blocks holds a row's weights in registers: integers, so
// that every sum is the same in any order, and a cut (the k largest, a share of the sum, the token at a running sum) is found by bisection.
#pragma once
#include "common.cuh"
#include "step.cuh"

#define THREADS 1024
#define WEIGHT_BITS 44
#define ID_BITS 18
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

struct Sums {
  u64 warps[2][32], blocks[2][CLUSTER];
};

DEVICE u64 warp_total(u64 value) {
  UNROLL for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

DEVICE u32 cluster_rank() { return blockIdx.x % CLUSTER; }

DEVICE void meet_cluster() {
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

DEVICE void tell_block(u64* slot, u32 rank, u64 value) {
#if CLUSTER > 1
  u32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(slot)), "r"(rank));
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(remote), "l"(value) : "memory");
#endif
}

// The sum over every thread of the cluster, known to each. Buffers alternate: a barrier lies between two uses of one.
DEVICE u64 total(Sums& sums, int& parity, u64 value) {
  parity ^= 1;
  value = warp_total(value);
  if ((threadIdx.x & 31) == 0) sums.warps[parity][threadIdx.x >> 5] = value;
  __syncthreads();
  value = warp_total(sums.warps[parity][threadIdx.x & 31]);
#if CLUSTER > 1
  if (threadIdx.x < CLUSTER) tell_block(&sums.blocks[parity][cluster_rank()], threadIdx.x, value);
  __syncwarp();
  meet_cluster();
  value = 0;
  UNROLL for (int rank = 0; rank < CLUSTER; ++rank) value += sums.blocks[parity][rank];
#endif
  return value;
}

struct Row {
  u64 weights[ITEMS];
  Sums& sums;
  int parity;

  METHOD u32 id(int item) const { return (cluster_rank() * ITEMS + item) * THREADS + threadIdx.x; }

  // The sum of what `of` makes of each weight and its id.
  template <class Of> METHOD u64 sum(Of of) {
    u64 mine = 0;
    EACH for (int item = 0; item < ITEMS; ++item) mine += of(weights[item], id(item));
    return total(sums, parity, mine);
  }

  // The largest number of `bits` bits for which `holds`, which holds for 0 and no more once it does not.
  template <class Holds> METHOD u64 largest(int bits, Holds holds) {
    u64 found = 0;
    for (int bit = bits - 1; bit >= 0; --bit) {
      const u64 tried = found | 1ull << bit;
      if (holds(tried)) found = tried;
    }
    return found;
  }

  // Drop what is below `least`, and all but the first `equals` of those that equal it.
  METHOD void keep(u64 least, u64 equals) {
    u64 last = ~0ull;
    if (sum([&](u64 w, u32) { return (u64)(w == least); }) > equals)
      last = largest(ID_BITS, [&](u64 tried) { return sum([&](u64 w, u32 id) { return (u64)(w == least && id < tried); }) < equals; });
    EACH for (int item = 0; item < ITEMS; ++item)
      if (weights[item] < least || (weights[item] == least && id(item) > last)) weights[item] = 0;
  }

  METHOD void keep_largest(u64 count) {
    const u64 least = largest(WEIGHT_BITS + 1, [&](u64 tried) { return sum([&](u64 w, u32) { return (u64)(w >= tried); }) >= count; });
    const u64 above = sum([&](u64 w, u32) { return (u64)(w > least); });
    keep(least, count - above);
  }

  METHOD void keep_share(u64 share) {
    const u64 all = sum([](u64 w, u32) { return w; });
    const u64 part = (all >> 32) * share + ((all & 0xffffffffu) * share >> 32), target = part ? part : 1;
    const u64 least = largest(WEIGHT_BITS + 1, [&](u64 tried) { return sum([&](u64 w, u32) { return w >= tried ? w : 0; }) >= target; });
    const u64 missing = target - sum([&](u64 w, u32) { return w > least ? w : 0; });
    keep(least, (missing + least - 1) / least);
  }

  METHOD u32 drawn(u64 bits) {
    const u64 all = sum([](u64 w, u32) { return w; });
    const u64 wanted = __umul64hi(bits, all);
    return (u32)largest(ID_BITS, [&](u64 tried) { return sum([&](u64 w, u32 id) { return id < tried ? w : 0; }) <= wanted; });
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
DEVICE void draw_row(const float* logits, i64 stride, int vocabulary, const int2* best, const Draw* draws, int* drawn, const int* step, int* last_tokens) {
  __shared__ Sums sums;
  await_previous();
  const int wanted = blockIdx.x / CLUSTER;
  const Draw draw = draws[wanted];
  if (!draw.used) return;
  meet_cluster();  // nobody writes to a block that has not begun
  const int slot = row_array(step, WANTED_SLOTS)[wanted];
  const float* row = logits + slot * stride;
  const double largest = __int_as_float(best[wanted].y);
  Row held = {{}, sums, 0};
  EACH for (int item = 0; item < ITEMS; ++item) {
    const u32 id = held.id(item);
    held.weights[item] = id < vocabulary ? weight_of(row[id], largest, draw.temperature) : 0;
  }
  if (draw.top_k && draw.top_k < vocabulary) held.keep_largest(draw.top_k);
  if (draw.used & HAS_SHARE) held.keep_share(draw.share);
  EACH for (int item = 0; item < ITEMS; ++item)
    if (held.weights[item] < draw.least) held.weights[item] = 0;
  const u32 token = held.drawn(random_bits(draw.seed, draw.position));
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    drawn[wanted] = token;
    if (token < vocabulary) last_tokens[slot] = token;  // of logits that are not finite nothing can be drawn
  }
  meet_cluster();  // nor to one that has ended
}
