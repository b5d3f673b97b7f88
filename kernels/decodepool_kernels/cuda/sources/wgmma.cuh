// Tensor-core steps of a warpgroup (sm_90a): 64 outputs, weights in registers as for m16n8k16 a warp, times 8 TILES rows of activations in shared memory.
#pragma once
#include "common.cuh"

#if BFLOAT
#define STEP_TYPES ".f32.bf16.bf16"
#else
#define STEP_TYPES ".f32.f16.f16"
#endif
#define RESULTS(n) "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3])
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(keeps)
#define REGISTERS_12 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11"
#define REGISTERS_16 REGISTERS_12 ",%12,%13,%14,%15"
#define REGISTERS_24 REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define REGISTERS_32 REGISTERS_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_48 REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define REGISTERS_64 REGISTERS_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// s = a rows (+ s where it keeps).
DEVICE void multiply_group(float (&s)[TILES][4], const u32* a, u64 rows, int keeps) {
#if TILES == 3
  asm volatile("{.reg .pred p; setp.ne.b32 p, %17, 0; wgmma.mma_async.sync.aligned.m64n24k16" STEP_TYPES " {" REGISTERS_12 "},{%12,%13,%14,%15},%16,p,1,1,0;}"
               : RESULTS(0), RESULTS(1), RESULTS(2) : OPERANDS);
#elif TILES == 4
  asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16" STEP_TYPES " {" REGISTERS_16 "},{%16,%17,%18,%19},%20,p,1,1,0;}"
               : RESULTS(0), RESULTS(1), RESULTS(2), RESULTS(3) : OPERANDS);
#elif TILES == 6
  asm volatile("{.reg .pred p; setp.ne.b32 p, %29, 0; wgmma.mma_async.sync.aligned.m64n48k16" STEP_TYPES " {" REGISTERS_24 "},{%24,%25,%26,%27},%28,p,1,1,0;}"
               : RESULTS(0), RESULTS(1), RESULTS(2), RESULTS(3), RESULTS(4), RESULTS(5) : OPERANDS);
#elif TILES == 8
  asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16" STEP_TYPES " {" REGISTERS_32 "},{%32,%33,%34,%35},%36,p,1,1,0;}"
               : RESULTS(0), RESULTS(1), RESULTS(2), RESULTS(3), RESULTS(4), RESULTS(5), RESULTS(6), RESULTS(7) : OPERANDS);
#elif TILES == 16
  asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16" STEP_TYPES " {" REGISTERS_64 "},{%64,%65,%66,%67},%68,p,1,1,0;}"
               : RESULTS(0), RESULTS(1), RESULTS(2), RESULTS(3), RESULTS(4), RESULTS(5), RESULTS(6), RESULTS(7), RESULTS(8), RESULTS(9), RESULTS(10), RESULTS(11), RESULTS(12), RESULTS(13), RESULTS(14), RESULTS(15)
               : OPERANDS);
#endif
}

// Where rows of 64 bytes lie whose chunks are exchanged by row, on 512 bytes: in units of 16 bytes, as the tensor cores are told.
DEVICE u32 rows_at(u32 address) { return (address & 0x3ffff) >> 4 | 1u << 16; }

// The same with how far on the next 8 rows lie: behind all planes of these.
DEVICE u64 tiles_at(u32 rows) { return (u64)rows | (u64)((u32)(PLANES * 512) >> 4 | 2u << 30) << 32; }

// Where a group's sums lie: cores of 8 rows x 8 halves, hi and lo of 8 rows side by side.
DEVICE u64 sums_at(u32 address) { return (u64)((address & 0x3ffff) >> 4 | 128u >> 4 << 16) | (u64)(256u >> 4) << 32; }

DEVICE void begin_steps() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_steps() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// The registers of a step's weights are read until it is over, which the compiler does not know: with this after it they stay.
DEVICE void hold(const u32 (&a)[8], u32 never_one) {
  asm volatile("{.reg .pred p; setp.eq.u32 p, %8, 1; @p st.shared.v4.b32 [%8], {%0,%1,%2,%3}; @p st.shared.v4.b32 [%8], {%4,%5,%6,%7};}"
               ::"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(never_one) : "memory");
}

DEVICE void hold(const u32 (&a)[4], u32 never_one) {
  asm volatile("{.reg .pred p; setp.eq.u32 p, %4, 1; @p st.shared.v4.b32 [%4], {%0,%1,%2,%3};}" ::"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(never_one) : "memory");
}

// Wait until at most `pending` of the warpgroup's committed steps are under way.
template <int pending> DEVICE void await_steps() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }
