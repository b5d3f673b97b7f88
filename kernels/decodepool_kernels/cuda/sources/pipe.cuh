// A ring of slots in shared memory between warps that copy and warps that compute (sm_90): a slot is filled by the copy engine, then read, then
// given back by every reading warp, or by each of its lanes.
#pragma once
#include "common.cuh"

DEVICE void wait_barrier(u32 barrier, int phase) {
  asm volatile("{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(phase) : "memory");
}

DEVICE void set_barrier(u32 barrier, int arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory"); }

// By the thread that set barriers, before others meet it: the copy engine and other blocks see them too.
DEVICE void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }

// Arrive once all that this thread has asked `copy16` for is here.
DEVICE void arrive_behind_copies(u32 barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory"); }

// Arrive, and have the barrier wait for so many bytes besides.
DEVICE void arrive_expecting(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// What a thread has read with its own instructions comes before any copy that is asked for once its warp has met.
DEVICE void end_plain_reads() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A run of bytes, a multiple of 16, to shared memory; the barrier counts them as they come.
DEVICE void copy_run(u32 target, const void* source, int bytes, u32 barrier, u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               ::"r"(target), "l"(source), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

// True in one lane of a warp, which all go through: the compiler then knows that what follows is one thread's, as it does not of "lane 0".
DEVICE bool is_elected() {
  u32 is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is));
  return is;
}

// A reading warp is done with the slot of which `free` is the second barrier.
DEVICE void give_back_slot(u32 free) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) arrive(free);
}

// One side's view of the ring; both sides pass over the slots in the same order.
template <int stages, int slot_bytes> struct Pipe {
  u32 slots, barriers;  // a slot's barriers: filled, then free
  int stage, phase;

  METHOD Pipe(const u8* first_slot, const u64* first_barrier) : slots(shared_address(first_slot)), barriers(shared_address(first_barrier)), stage(0), phase(0) {}

  // By one thread, before the sides meet: how often each side arrives.
  METHOD void set(int reading, int filling = 1) const {
    for (int slot = 0; slot < stages; slot++) set_barrier(barriers + 16 * slot, filling), set_barrier(barriers + 16 * slot + 8, reading);
    show_barriers();
  }
  METHOD u32 slot() const { return slots + stage * slot_bytes; }
  METHOD u32 filled() const { return barriers + 16 * stage; }
  METHOD void pass() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }

  // To a slot, by how many were passed before it.
  METHOD void go_to(int passed) { stage = passed % stages, phase = passed / stages & 1; }

  // The copying side's turn begins, by one thread: the slot is free, and will hold so many bytes.
  METHOD void claim(int bytes) const {
    wait_barrier(filled() + 8, phase ^ 1);
    arrive_expecting(filled(), bytes);
  }

  METHOD void wait() const { wait_barrier(filled(), phase); }

  // A reading warp goes on to the next slot and keeps the one at hand until it gives that back.
  METHOD u32 leave() {
    const u32 kept = filled() + 8;
    pass();
    return kept;
  }

  // A reading warp is done with the slot; read_plainly where its own instructions read it, and the copy engine fills it next.
  template <bool read_plainly> METHOD void give_back() {
    if (read_plainly) end_plain_reads();
    give_back_slot(filled() + 8);
    pass();
  }

  // The same, each of its lanes for itself, which racecheck can follow.
  template <bool read_plainly> METHOD void give_back_each() {
    if (read_plainly) end_plain_reads();
    arrive(filled() + 8);
    pass();
  }
};
