// Products of a warpgroup (sm_90a): 64 rows times 64 columns in steps of 16, the second operand in shared memory as pages keep it (panels of 64 dims,
// rows of 128 bytes, chunks exchanged by row). The registers of the results may be touched after `await_products`.
#pragma once
#include "common.cuh"

#define EIGHT(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]), "+f"(d[n + 1][0]), "+f"(d[n + 1][1]), "+f"(d[n + 1][2]), "+f"(d[n + 1][3])
#define RESULTS_64(d) EIGHT(d, 0), EIGHT(d, 2), EIGHT(d, 4), EIGHT(d, 6)
#define REGISTERS_64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"

// Where an operand of rows of 128 bytes lies.
DEVICE u64 panel_at(u32 address) { return (u64)(address >> 4 | 1u << 16) | (u64)(64u | 1u << 30) << 32; }

DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> DEVICE void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// d = a b (+ d where it keeps), a in registers; `transposed` where b's rows are the steps.
template <int transposed> DEVICE void multiply_panel(float (&d)[8][4], const u32 (&a)[4], u64 b, int keeps) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%37,0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " REGISTERS_64 ",{%32,%33,%34,%35},%36,p,1,1,%38;}"
               : RESULTS_64(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keeps), "n"(transposed));
}

// d += a b, both in shared memory.
DEVICE void multiply_panels(float (&d)[8][4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " REGISTERS_64 ",%32,%33,1,1,1,0,0;" : RESULTS_64(d) : "l"(a), "l"(b));
}

// d = a b (+ d where it keeps), b 8 columns of ones.
DEVICE void multiply_column(float (&d)[4], const u32 (&a)[4], u64 b, int keeps) {
  asm volatile("{.reg .pred p; setp.ne.b32 p,%9,0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3},{%4,%5,%6,%7},%8,p,1,1,0;}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keeps));
}
