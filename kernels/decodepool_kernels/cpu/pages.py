"""The memory of keys and values: `page_count` pages of 64 tokens in every layer, all taken at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodepool_kernels.cpu.buffers import address, aligned_bytes
from decodepool_kernels.cpu.kv import KV_KINDS, head_bytes


@dataclass(frozen=True)
class LayerPages:
    """One layer's keys and values, each page_count x page_bytes."""

    keys: NDArray[np.uint8]
    values: NDArray[np.uint8]
    page_bytes: int

    @property
    def addresses(self) -> tuple[int, int]:
        """Where keys and values begin."""
        return address(self.keys), address(self.values)


class KvPages:
    """Every layer's pages. `heads` gives (kv heads, head width) a layer."""

    def __init__(self, kind: str, heads: Sequence[tuple[int, int]], page_count: int) -> None:
        self.kind = kind
        self.kind_index = KV_KINDS.index(kind)
        self.page_count = page_count
        self.layers = [self._layer(count, width) for count, width in heads]

    def _layer(self, kv_heads: int, width: int) -> LayerPages:
        page_bytes = kv_heads * head_bytes(self.kind, width)
        keys, values = (aligned_bytes(self.page_count * page_bytes) for _ in range(2))
        return LayerPages(keys, values, page_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(layer.keys.size + layer.values.size for layer in self.layers)

    def touch(self) -> None:
        """Make every page resident now, so that no session finds memory missing later."""
        for layer in self.layers:
            layer.keys.fill(0)
            layer.values.fill(0)

    def copy(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        for layer in self.layers:
            size = layer.page_bytes
            for plane in (layer.keys, layer.values):
                plane[target * size : (target + 1) * size] = plane[source * size : (source + 1) * size]
