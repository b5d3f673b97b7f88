// How a token's keys and values come into its page. Values are kept finite, for a weight of 0 times NaN would reach rows that must not see it; where
// they were NaN the keys become NaN, which only rows that see the token meet.
#pragma once
#include "pages.cuh"

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

// `at` is the code's place, `scale_at` that of its scale.
DEVICE void put_quantised(u8* half, int head_dim, int dim, int at, int scale_at, float scale, int code) {
  half[at] = (u8)(code + 128);
  if (dim % QUANT_DIMS == 0) ((u16*)(half + PAGE_TOKENS * head_dim))[scale_at] = (u16)f16_pair(scale, 0.f);
}

// A dim of a token's key and value, by warps of 32 dims.
DEVICE void append_quantised(u8* page, int head_dim, int token, int dim, float key, float value) {
  const bool is_lost = __any_sync(~0u, value != value);
  const Quantised k(key, is_lost), v(is_lost ? 0.f : value, false);
  u8* values = page + head_page_bytes(head_dim);
  put_quantised(page, head_dim, dim, code_at(token, dim, head_dim / 16), key_scale_at(head_dim, token, dim), k.scale, k.code);
  put_quantised(values, head_dim, dim, code_at(dim, token, PAGE_TOKENS / 16), value_scale_at(token, dim), v.scale, v.code);
}
