"""What a step's products of many rows keep beside their results on a GPU: the sums of slices that are left apart until
who takes them folds them, or that thread blocks hand on; cut as the CUDA engine cuts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from decodepool_sizing.devices import GpuCores
from decodepool_sizing.expected import has_head_norms
from decodepool_sizing.gpu_arena import SLICES, sizes_of
from decodepool_sizing.layouts import BLOCK_INPUTS, FLOAT_BYTES, GROUP_BLOCKS, QUANT_LAYOUTS, gpu_matrix_bytes
from decodepool_sizing.matrix_types import (
    DOWN,
    GATES,
    OUT,
    QUERIES,
    UNIFORM,
    StepTypes,
    launches_of,
    rounding_of,
    share_rounding,
)
from decodepool_sizing.shape import ModelShape

PREPARED_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows for which a step is prepared; a step of fewer runs the next, and the rows it lacks are passed over."""
FEWEST_WIDE_ROWS, FEWEST_SLICES = 24, 5
"""Rows from which on products are wide; slices of a thread block below which each slice is left apart."""
UNIT_OUTPUTS = 256
"""Of a unit of a wide product, at most; one of half of them has up to twice the rows, and no more sums."""
HOPPER_UNIT_ROWS = (24, 32, 48, 64)
"""Of a unit on Hopper: the fewest that make no more units."""
UNIT_ROWS, FEWEST_STAGES, STATIC_BYTES = (64, 32), 2, 4096
"""Of a unit on other GPUs: the most whose ring has so many stages beside what else is shared, and no more than there
are."""


@dataclass(frozen=True)
class _Product:
    """Matrices of a type that the same rows are multiplied by in one launch; `places` times UNIT_OUTPUTS of them."""

    type_name: str
    places: int


def sums_bytes(shape: ModelShape, cores: GpuCores, max_step_rows: int, types: StepTypes) -> int:
    """Return the bytes that the products of steps of up to `max_step_rows` rows use in turn."""
    widths = {min(rows, max_step_rows) for rows in PREPARED_ROWS if min(rows, max_step_rows) >= FEWEST_WIDE_ROWS}
    sizes = [_kept_bytes(beside, rows, cores) for beside in set(_products(shape, types)) for rows in widths]
    return max(sizes, default=0)


def _products(shape: ModelShape, types: StepTypes) -> Iterator[tuple[_Product, ...]]:
    """Yield each product, and those that leave slices beside each other."""
    size = sizes_of(shape)
    for block in types.mixtures:
        queries = _launched((size.queries, size.keys, size.keys), block[QUERIES])
        gates = _launched((size.feed_forward, size.feed_forward), block[GATES])
        added = [_launched((size.embedding,), (block[matrix],)) for matrix in (OUT, DOWN)]
        yield from ((product,) for product in (*queries, *gates))
        yield from added
        if share_rounding(block[QUERIES]) and not has_head_norms(shape):
            yield queries
    yield _launched((shape.vocabulary_size,), (types.output,))


def _launched(outputs: Sequence[int], types: Sequence[str]) -> tuple[_Product, ...]:
    places = [-(-count // UNIT_OUTPUTS) for count in outputs]
    return tuple(_Product(types[alike[0]], sum(places[index] for index in alike)) for alike in launches_of(types))


def _kept_bytes(beside: Sequence[_Product], rows: int, cores: GpuCores) -> int:
    """Return the bytes of the sums that products leave apart, beside each other, or that a product hands on."""
    found = [_unit_rows(product.type_name, rows, cores) for product in beside]
    unit_rows = [each for each in found if each is not None]
    if len(unit_rows) < len(beside):
        return 0
    units = sum(product.places * -(-rows // each) for product, each in zip(beside, unit_rows, strict=True))
    if units < _fewest_whole(cores):
        return 4 * SLICES * rows * UNIT_OUTPUTS * sum(product.places for product in beside)
    if not cores.is_hopper or len(beside) > 1:
        return 0
    return 4 * min(SLICES * units, cores.multiprocessors) * UNIT_OUTPUTS * unit_rows[0]


def _fewest_whole(cores: GpuCores) -> int:
    """Return the units below which slices are left apart."""
    return -(-FEWEST_SLICES * cores.multiprocessors // SLICES) if cores.is_hopper else -(-cores.multiprocessors // 2)


def _unit_rows(type_name: str, rows: int, cores: GpuCores) -> int | None:
    """Return the rows of a unit of a product with `rows` rows; None where it is not wide."""
    rounding = rounding_of(type_name)
    if rounding is None:
        return None
    if cores.is_hopper:
        units = -(-rows // HOPPER_UNIT_ROWS[-1])
        return next(each for each in HOPPER_UNIT_ROWS if each * units >= rows)
    inputs, is_kept = GROUP_BLOCKS * BLOCK_INPUTS, type_name in QUANT_LAYOUTS or type_name in FLOAT_BYTES
    weights = gpu_matrix_bytes(type_name if is_kept else UNIFORM.output, inputs, UNIT_OUTPUTS)
    row = 2 * rounding.planes * inputs
    most = (cores.shared_bytes - STATIC_BYTES) // FEWEST_STAGES
    ways = UNIT_ROWS if rows > UNIT_ROWS[-1] else UNIT_ROWS[-1:]
    return next((each for each in ways if weights + each * row <= most), None)
