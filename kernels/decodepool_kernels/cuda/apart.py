"""Which products' slices may be left apart, and who takes them."""

from __future__ import annotations

from decodepool_kernels import graph as g
from decodepool_kernels.arena import Buffer
from decodepool_kernels.cuda.products import MOST_PARTS
from decodepool_kernels.cuda.records import Apart, PartOperands


class LastProducts:
    """The products last lowered, while they take one activation of `columns` rows: whoever asks for all their results
    at once, and first, takes their slices as they were left.
    """

    def __init__(self, columns: int, *, fused: bool) -> None:
        self._columns, self._fused = columns, fused
        self._results: tuple[g.Tensor, ...] = ()
        self._apart: Apart | None = None
        self._given: set[g.Tensor] = set()

    def add(self, activation: Buffer, parts: tuple[PartOperands, ...], results: tuple[g.Tensor, ...]) -> Apart:
        """Return where a product's slices lie: beside those of the products before, where they take its activation."""
        apart = self._apart
        if apart is None or apart.activation is not activation or len(apart.parts) + len(parts) > MOST_PARTS:
            self._results, apart = (), Apart([], activation, self._columns)
        apart.products.append(parts)
        self._results, self._apart = (*self._results, *results), apart if self._fused else None
        return apart

    def ask(self, tensor: g.Tensor) -> None:
        """Somebody asks for a tensor as it is."""
        assert tensor not in self._given, "a product's slices were given away: nobody else finds its result"
        if tensor in self._results:
            self._results, self._apart = (), None

    def take(self, tensors: tuple[g.Tensor, ...]) -> Apart | None:
        """Return what holds the slices of these tensors and of no others; None where nothing does."""
        if self._apart is None or set(self._results) != set(tensors):
            return None
        apart, self._apart = self._apart, None
        apart.order = tuple(self._results.index(tensor) for tensor in tensors)
        self._given.update(tensors)
        return apart

    def put(self, tensor: g.Tensor) -> None:
        """Who took a tensor's slices has put its rows where they would be."""
        self._given.discard(tensor)
