// A page of f16 keys or values of one kv head: 64 tokens in panels of up to 64 dims. A token's row in a panel holds its dims in chunks of 16
// bytes, exchanged by token so that any 8 tokens' chunks lie in different banks. One layer: [page][kv head][keys | values].
#pragma once
#include "common.cuh"

#define PAGE_TOKENS 64

DEVICE int head_page_bytes(int head_dim) { return PAGE_TOKENS * head_dim * 2; }

// Where chunk `chunk` (8 dims) of a token lies within its head's keys or values.
DEVICE int chunk_at(int head_dim, int token, int chunk) {
  const int panel = chunk >> 3, chunks = min(8, head_dim / 8 - 8 * panel);
  const int exchange = (chunks == 8 ? token : chunks == 4 ? token >> 1 : token >> 2) & (chunks - 1);
  return panel * (PAGE_TOKENS * 128) + token * chunks * 16 + ((chunk & 7) ^ exchange) * 16;
}

DEVICE u8* head_page(u8* layer, int page, int kv_heads, int kv_head, int head_dim) {
  return layer + ((size_t)page * kv_heads + kv_head) * 2 * head_page_bytes(head_dim);
}

DEVICE float saturated(float value) { return value != value ? value : fminf(fmaxf(value, -65504.f), 65504.f); }
