"""Keys and values on the device: `page_count` pages of 64 tokens in every layer, all taken at once, zeroed; f16, or
q8_0 (a code an element, and an f16 scale for each 32 dims of a token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.page_tables import PAGE_TOKENS

QUANT_DIMS = 32
KV_BITS = {"f16": 16, "q8_0": 8}
"""What the kernels are told of a kind of keys and values."""


def head_page_bytes(head_dim: int, kv_bits: int) -> int:
    """Return the bytes of one head's keys, or values, in one page."""
    scales = head_dim // QUANT_DIMS * 2 if kv_bits == KV_BITS["q8_0"] else 0
    return PAGE_TOKENS * (head_dim * kv_bits // 8 + scales)


@dataclass(frozen=True)
class LayerPages:
    """One layer: [page][kv head][keys | values]."""

    address: int
    page_bytes: int


class KvPages:
    """Every layer's pages. `heads` gives (kv heads, head width) a layer."""

    def __init__(self, gpu: Gpu, heads: Sequence[tuple[int, int]], page_count: int, kind: str = "f16") -> None:
        self._gpu = gpu
        self.page_count = page_count
        self.kv_bits = KV_BITS[kind]
        sizes = [2 * count * head_page_bytes(width, self.kv_bits) for count, width in heads]
        begin = gpu.allocate(sum(sizes) * page_count)
        ends = accumulate((size * page_count for size in sizes), initial=begin)
        self.layers = [LayerPages(address, size) for address, size in zip(ends, sizes, strict=False)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(layer.page_bytes for layer in self.layers) * self.page_count

    def copy(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        for layer in self.layers:
            size = layer.page_bytes
            self._gpu.copy(layer.address + target * size, layer.address + source * size, size)
