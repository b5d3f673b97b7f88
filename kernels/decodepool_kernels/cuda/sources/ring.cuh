// A ring of slots in shared memory that a warp or a block fills in the background and reads in order. Copies are asked for
// by teams of `threads`: on sm_90 and up a team's first thread asks the copy engine for a whole run, and a barrier a slot,
// kept by the leader, tells when all are there; before, a team's threads copy a run piece by piece. Readers fence before they meet: a run may land in a
// slot only after ordinary reads of it are over.
#pragma once
#include "pipe.cuh"

#define HAS_COPY_ENGINE (__CUDA_ARCH__ >= 900)

template <int threads, int stages, int slot_bytes> struct Ring {
  u32 slots, barriers;
  int self;  // the thread's place in its team
  bool leads;
  int filling, reading, phase;

  // Slots (on 16 bytes) and barriers lie in shared memory. The ring's threads meet before they fill it.
  METHOD Ring(const u8* first_slot, const u64* first_barrier, int thread)
      : slots(shared_address(first_slot)), barriers(shared_address(first_barrier)), self(thread % threads), leads(thread == 0), filling(0), reading(0), phase(0) {
#if HAS_COPY_ENGINE
    if (leads)
      for (int slot = 0; slot < stages; slot++) set_barrier(barriers + 8 * slot, 1);
    show_barriers();
#endif
  }

  // Say how many bytes the slot being filled will hold.
  METHOD void expect(int bytes) const {
#if HAS_COPY_ENGINE
    if (leads) arrive_expecting(barriers + 8 * filling, bytes);
#endif
  }

  // A team's run of bytes, a multiple of 16, into the slot being filled.
  METHOD void copy(int offset, const u8* source, int bytes, u64 policy) const {
    const u32 target = slots + filling * slot_bytes + offset;
#if HAS_COPY_ENGINE
    if (self == 0) copy_run(target, source, bytes, barriers + 8 * filling, policy);
#else
    for (int at = self * 16; at < bytes; at += threads * 16) copy16(target + at, source + at);
#endif
  }

  // The slot being filled is complete, or stays empty: on to the next.
  METHOD void filled() {
#if !HAS_COPY_ENGINE
    commit_copies();
#endif
    if (++filling == stages) filling = 0;
  }

  // Wait until the slot to be read is there. Threads see each other's copies, and are done with the slot before, once they meet.
  METHOD void wait() const {
#if HAS_COPY_ENGINE
    wait_barrier(barriers + 8 * reading, phase);
    end_plain_reads();
#else
    wait_copies<stages - 2>();
#endif
  }

  // The byte offset of the slot that is there; on to the next.
  METHOD u32 take() {
    const u32 offset = reading * slot_bytes;
    if (++reading == stages) reading = 0, phase ^= 1;
    return offset;
  }
};
