// How a token's keys and values come into its page. Values are kept finite, for a weight of 0 times NaN would reach rows that must not see it; where
// they were NaN the keys become NaN, which only rows that see the token meet.
#pragma once
#include "pages.cuh"

#define APPENDED_DIMS (KV_BITS == 8 ? 1 : 4)  // a thread

#define LARGEST_SCALE 515.5f  // 127 times it is still an f16

// One value of 32 that a warp holds; its element is f16(scale x code).
struct Quantised {
  float scale;
  int code;
  METHOD Quantised(float value, bool is_lost) : code(0) {
    value = saturated(value);
    const float largest = warp_largest(fabsf(value));
    scale = f32_of_f16((u16)f16_pair(fminf(__fdiv_rn(largest, 127.f), LARGEST_SCALE), 0.f));
    if (__any_sync(~0u, value != value) || is_lost) scale = NOT_A_NUMBER;
    else if (scale > 0.f) code = (int)fminf(fmaxf(rintf(__fdiv_rn(value, scale)), -127.f), 127.f);
  }
};

DEVICE void put_quantised(u8* half, int head_dim, int token, int dim, int at, float scale, int code) {
  half[at] = (u8)(code + 128);
  if (dim % QUANT_DIMS == 0) *(u16*)(half + scale_at(head_dim, token, dim)) = (u16)f16_pair(scale, 0.f);
}

#if KV_BITS == 8
// A dim of a token's key and value, by warps of 32 dims, ready for the halves of its page.
struct Appended {
  bool is_lost;
  Quantised key, value;
  METHOD Appended(float k, float v) : is_lost(__any_sync(~0u, v != v)), key(k, is_lost), value(is_lost ? 0.f : v, false) {}
  METHOD void put(u8* keys, u8* values, int head_dim, int token, int dim) const {
    put_quantised(keys, head_dim, token, dim, code_at(token, dim, head_dim / 16), key.scale, key.code);
    put_quantised(values, head_dim, token, dim, code_at(dim, token, PAGE_TOKENS / 16), value.scale, value.code);
  }
};
#else
DEVICE bool is_nan(float4 v) { return v.x != v.x || v.y != v.y || v.z != v.z || v.w != v.w; }

DEVICE uint2 halves_of(float4 v) { return make_uint2(f16_pair(saturated(v.x), saturated(v.y)), f16_pair(saturated(v.z), saturated(v.w))); }

// Four dims of a token's key and value, ready for the halves of its page.
struct Appended {
  uint2 key, value;
  METHOD Appended(float4 k, float4 v) {
    const bool is_lost = is_nan(v);
    key = halves_of(is_lost ? make_float4(NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER) : k);
    value = halves_of(is_lost ? make_float4(0.f, 0.f, 0.f, 0.f) : v);
  }
  METHOD void put(u8* keys, u8* values, int head_dim, int token, int dim) const {
    const int at = chunk_at(head_dim, token, dim >> 3) + (dim & 7) * 2;
    *(uint2*)(keys + at) = key, *(uint2*)(values + at) = value;
  }
};
#endif
