"""Where a step's intermediate results lie on a GPU: what each launch reads and writes, as the CUDA engine lowers a
model, placed by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from decodepool_sizing.arena import Buffer, place
from decodepool_sizing.expected import has_head_norms
from decodepool_sizing.layouts import BLOCK_INPUTS, GROUP_BLOCKS, round_up
from decodepool_sizing.matrix_types import (
    DOWN,
    GATES,
    OUT,
    QUERIES,
    BlockTypes,
    Rounding,
    StepTypes,
    launches_of,
    rounding_of,
)
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.workspace import feed_forward_elements

SLICES = 8
"""Of a row's scales."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements of a row, of the widest layer."""

    embedding: int
    queries: int
    keys: int
    feed_forward: int


def sizes_of(shape: ModelShape) -> Sizes:
    """Return the elements of a model's rows."""
    widest = [(layer, max(layer.key_length, layer.value_length)) for layer in shape.layers]
    queries = max(layer.head_count * width for layer, width in widest)
    keys = max(layer.kv_head_count * width for layer, width in widest)
    return Sizes(shape.embedding_length, queries, keys, feed_forward_elements(shape))


@lru_cache(maxsize=256)
def arena_bytes(shape: ModelShape, rows: int, types: StepTypes, *, has_wide: bool) -> int:
    """Return the bytes of intermediate results of `rows` rows; `has_wide` where attention has its program of many."""
    step = _Step(shape, rows, has_wide=has_wide)
    for index in range(shape.block_count):
        step.block(types.of_block(index))
    step.logits(types.output)
    return place(step.uses).size_bytes


@dataclass(frozen=True)
class _Source:
    """Rows that products take: what a launch that quantises them reads, with planes of products whose slices it folds,
    and what it writes beside its own; then it reads that alone, if any. `plain` is where they lie as they are.
    """

    plain: Buffer
    reads: tuple[Buffer, ...]
    folds: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()

    @property
    def again(self) -> _Source:
        """The source of the same rows, taken in another way."""
        return _Source(self.plain, self.writes or self.reads)


class _Step:
    """The launches of a step so far. `_taken` is the activation of products that the next launch folds."""

    def __init__(self, shape: ModelShape, rows: int, *, has_wide: bool) -> None:
        self._rows, self._columns = rows, round_up(rows, 2 * BLOCK_INPUTS)
        self._size, self._attentions = sizes_of(shape), 1 + has_wide
        self._has_head_norms = has_head_norms(shape)
        self._x, self._table = self._floats(self._size.embedding), Buffer(4 * shape.key_length * rows)
        self._addend: tuple[Buffer, ...] = ()
        self._taken: tuple[Buffer, ...] = ()
        self.uses: list[tuple[Sequence[Buffer], Sequence[Buffer]]] = [((), (self._x,)), ((), (self._table,))]

    def block(self, types: BlockTypes) -> None:
        """Launch attention and feed-forward."""
        size = self._size
        q, k, v = (self._floats(width) for width in (size.queries, size.keys, size.keys))
        self._multiply(self._normed(), size.embedding, (q, k, v), types[QUERIES])
        self._attend(q, k, v, types[OUT])
        gate, up, gated = (self._floats(size.feed_forward) for _ in range(3))
        self._multiply(self._normed(), size.embedding, (gate, up), types[GATES])
        self._add(_Source(gated, (gate, up)), size.feed_forward, types[DOWN])

    def logits(self, kind: str) -> None:
        """Launch the last norm, of rows that are wanted, and its product."""
        source = self._normed()
        if rounding_of(kind) is None:
            picked = self._floats(self._size.embedding)
            self.uses += [(source.reads, source.writes), (source.again.reads, (picked,))]
            source = _Source(source.plain, (picked,))
        self._multiply(source, self._size.embedding, (), (kind,))

    def _attend(self, q: Buffer, k: Buffer, v: Buffer, kind: str) -> None:
        if self._has_head_norms:
            raw, self._taken = (q, k), ()
            q, k = self._floats(self._size.queries), self._floats(self._size.keys)
            self.uses += [((raw[0],), (q,)), ((raw[1],), (k,))]
        mixed = self._floats(self._size.queries)
        self.uses += [((q, k, v, self._table, *self._taken), (q,)), *[((q,), (mixed,))] * self._attentions]
        self._add(_Source(mixed, (mixed,)), self._size.queries, kind)

    def _normed(self) -> _Source:
        """The norm of the rows, with what is added to them before."""
        normed, total = self._floats(self._size.embedding), self._floats(self._size.embedding)
        if not self._addend:
            return _Source(normed, (self._x,))
        source = _Source(normed, (self._x, *self._addend), self._taken, (total,))
        self._x, self._addend = total, ()
        return source

    def _add(self, source: _Source, width: int, kind: str) -> None:
        """A product that the next norm adds."""
        out = self._floats(self._size.embedding)
        self._multiply(source, width, (out,), (kind,))
        self._addend = (out,)

    def _multiply(self, source: _Source, width: int, results: Sequence[Buffer], types: Sequence[str]) -> None:
        """Products of the same rows: a launch for those of a kind, each kind's rows quantised unless they are, but one
        each for those that take rows as they are, which come last.
        """
        made: dict[Rounding, Buffer] = {}
        self._taken = ()
        for alike in launches_of(types):
            wanted = rounding_of(types[alike[0]])
            if wanted is None:
                self._multiply_plain(source, [results[index] for index in alike if results])
                return
            found = next((planes for rounding, planes in made.items() if rounding.serves(wanted)), None)
            if found is None:
                found = made[wanted] = self._planes(width, wanted.planes)
                self.uses.append(((*source.reads, *source.folds), (*source.writes, found)))
                source = source.again
            self.uses.append(((found,), [results[index] for index in alike if results]))
        self._taken = tuple(made.values()) if len(made) == 1 else ()

    def _multiply_plain(self, source: _Source, results: Sequence[Buffer]) -> None:
        if source.writes:
            self.uses.append((source.reads, source.writes))
        self.uses.append((source.again.reads, (source.plain,)))
        self.uses += [((source.plain,), (result,)) for result in results] or [((source.plain,), ())]

    def _floats(self, elements: int) -> Buffer:
        return Buffer(4 * round_up(elements, BLOCK_INPUTS) * self._rows)

    def _planes(self, elements: int, planes: int) -> Buffer:
        blocks, groups = -(-elements // BLOCK_INPUTS), -(-elements // (GROUP_BLOCKS * BLOCK_INPUTS))
        each = blocks * 2 * planes * BLOCK_INPUTS + groups * 8 * GROUP_BLOCKS + 4 * SLICES
        return Buffer(self._columns * each)
