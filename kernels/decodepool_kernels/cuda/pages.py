"""Keys and values on the device: `page_count` pages of 64 tokens in every layer, all taken at once, zeroed, f16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.page_tables import PAGE_TOKENS

ELEMENT_BYTES = 2


@dataclass(frozen=True)
class LayerPages:
    """One layer: [page][kv head][keys | values]."""

    address: int
    page_bytes: int


class KvPages:
    """Every layer's pages. `heads` gives (kv heads, head width) a layer."""

    def __init__(self, gpu: Gpu, heads: Sequence[tuple[int, int]], page_count: int) -> None:
        self._gpu = gpu
        self.page_count = page_count
        sizes = [2 * count * width * PAGE_TOKENS * ELEMENT_BYTES for count, width in heads]
        self.layers = [LayerPages(gpu.allocate(size * page_count), size) for size in sizes]

    @property
    def size_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(layer.page_bytes for layer in self.layers) * self.page_count

    def copy(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        for layer in self.layers:
            size = layer.page_bytes
            self._gpu.copy(layer.address + target * size, layer.address + source * size, size)
