"""What `decodepool bench` is pointed at: a model's file, or a shape with random weights on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.kv import KVType
from decodepool_worker.engine.open import Loaded, Wanted, open_named_shape
from decodepool_worker.model.named_shapes import named_header

from decodepool_cli.cases import COMPACT_CASES, shape_cases
from decodepool_cli.measurement import Subject, Watch, joined, measure, unwatched

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


def step_weight_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Return the bytes of the weights that a step reads: all but an embedding that is not the output too."""
    sizes = {tensor.name: tensor.size_bytes for tensor in tensors}
    return sum(sizes.values()) - (sizes.get(EMBEDDING, 0) if OUTPUT in sizes else 0)


def shape_subject(name: str, weights: str, wanted: Wanted) -> Subject:
    """Return a named shape as a subject. BadDemand for names that are not known."""
    header = named_header(name, weights)

    @contextmanager
    def opened(demand: Wanted) -> Iterator[Loaded]:
        loaded = open_named_shape(name, weights, demand)
        try:
            yield loaded
        finally:
            loaded.engine.close()

    return Subject(f"{name} {weights}", opened, wanted, step_weight_bytes(header.tensors))


def file_subject(file: Path, tensors: Iterable[TensorInfo], wanted: Wanted) -> Subject:
    """Return a model's file as a subject."""
    from decodepool_cli.engines import opened  # noqa: PLC0415 - a terminal's packages, which a shape does without

    return Subject(file.name, lambda demand: opened(file, demand), wanted, step_weight_bytes(tensors))


def measure_shape(
    name: str, weights: str, *, threads: int | None = None, is_profiled: bool = False, watch: Watch = unwatched
) -> dict[str, Any]:
    """Measure all that a shape is held against: f16 keys and values, then q8_0 ones."""
    full = shape_subject(name, weights, Wanted(1, threads=threads, device="cuda"))
    compact = shape_subject(name, weights, Wanted(1, kv_type=KVType.Q8_0, threads=threads, device="cuda"))
    report = measure(full, shape_cases(is_profiled=is_profiled), watch)
    try:
        return joined(report, measure(compact, COMPACT_CASES, watch))
    except BadModelFile as error:  # what was measured is worth having without
        return report | {"not_measured": [{"kv_type": KVType.Q8_0.value, "reason": str(error)}]}
