// Integer types, f16 and bf16 by hand (NVRTC ships no headers for them), copies that run beside arithmetic, tensor-core steps.
// Everything is compiled without contraction: a multiply-add is fused where fmaf is written, and nowhere else.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define METHOD __device__ __forceinline__
#define DEVICE static METHOD
#define UNROLL _Pragma("unroll")
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define MINUS_INFINITY __int_as_float(0xff800000)

DEVICE float f32_of_f16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Two floats rounded to a pair of halves, the first in the low half.
DEVICE u32 f16_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

DEVICE u32 bf16_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

DEVICE float low_f16(u32 pair) { return f32_of_f16(pair & 0xffff); }
DEVICE float high_f16(u32 pair) { return f32_of_f16(pair >> 16); }
DEVICE float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000); }

DEVICE u32 subtract_f16_pairs(u32 a, u32 b) {
  u32 difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

DEVICE u32 multiply_f16_pairs(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

DEVICE u32 multiply_add_f16_pairs(u32 a, u32 b, u32 c) {
  u32 sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

// One half of a pair, twice: an operand that the arithmetic takes from where the half is.
DEVICE u32 doubled(u32 pair, int half) {
  u32 both;
  if (half) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(both) : "r"(pair));
  else asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(both) : "r"(pair));
  return both;
}

// c += a b for 16 x 16 by 16 x 8, f16 in, f32 out.
DEVICE void multiply_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void multiply_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The L2's policies: what is read once a step goes first, what all blocks read stays.
#define GOES_FIRST 0x12f0000000000000ull
#define STAYS 0x14f0000000000000ull

// Loads that the compiler leaves where they stand, ahead of the arithmetic that takes them one after the other.
DEVICE void load_early(float& v, const float* from) { asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from)); }

DEVICE void load_early(float2& v, const float2* from) { asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from)); }

DEVICE void load_early(float4& v, const float4* from) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
}

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

template <class T> DEVICE T shared_at(u32 address);
template <> METHOD u16 shared_at<u16>(u32 address) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}
template <> METHOD u32 shared_at<u32>(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
template <> METHOD float shared_at<float>(u32 address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}
template <> METHOD uint2 shared_at<uint2>(u32 address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
template <> METHOD uint4 shared_at<uint4>(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
template <> METHOD float4 shared_at<float4>(u32 address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
  return v;
}

DEVICE void put_shared(u32 address, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory"); }

DEVICE void put_shared(u32 address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// 16 bytes from global to shared memory, in the background.
DEVICE void copy16(u32 target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// The same, or zeros.
DEVICE void copy16_or_zero(u32 target, const void* source, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(is_there ? 16 : 0) : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `pending` of this thread's committed groups are in flight.
template <int pending> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// Programmatic dependent launch: a kernel may start before the one ahead of it has ended. Whatever that one wrote may be touched only after
// `await_previous`, which every block calls, so that the end of a kernel implies the end of all before it.
DEVICE void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same with an address of floats at hand, or two: what only loads behind the wait take would be worked out behind it.
DEVICE void await_previous_with(const float* a, const float* b = nullptr) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{.reg .pred p;\n\tsetp.ne.u64 p, %0, -1;\n\t@p griddepcontrol.wait;}" ::"l"((u64)a ^ (u64)b) : "memory");
#endif
}

DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE float warp_sum(float value) {
  UNROLL for (int step = 16; step; step >>= 1) value = __fadd_rn(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// a / b rounded once, of floats far from the ends of what f32 holds: the steps of __fdiv_rn, a step of Newton's on the reciprocal and one on the quotient,
// without its call for what lies outside, which costs registers.
DEVICE float quotient(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  inverse = fmaf(inverse, fmaf(-b, inverse, 1.f), inverse);
  const float first = __fmul_rn(a, inverse);
  return fmaf(inverse, fmaf(-b, first, a), first);
}

// The largest of a warp's magnitudes: floats that are not negative are ordered as their bits are.
DEVICE float warp_largest(float magnitude) { return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(magnitude))); }
