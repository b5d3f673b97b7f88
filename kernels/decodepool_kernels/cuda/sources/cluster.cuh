// Blocks of a cluster that write to each other's shared memory (sm_90). Addresses are 32 bits, as shared_address has them.
#pragma once
#include "common.cuh"

// Where block `rank` of the cluster has what this one has at `address`.
DEVICE u32 address_in(u32 address, int rank) {
  u32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// All threads of all blocks meet. Of what was written before, others see barriers that were set and fenced.
DEVICE void meet_blocks() { asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// 16 bytes to a block's shared memory, counted by a barrier of that block as they come.
DEVICE void send(u32 remote, float4 v, u32 remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(remote), "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)), "r"(remote_barrier)
               : "memory");
}

// The same of 4 bytes.
DEVICE void send(u32 remote, float v, u32 remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote), "r"(__float_as_uint(v)), "r"(remote_barrier) : "memory");
}

// Of the block's scope, as a wait is: the cluster's would make every step 2.5 % longer, and what it orders is a round trip between SMs apart.
DEVICE void arrive_at(u32 remote_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}
