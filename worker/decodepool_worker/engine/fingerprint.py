"""The name of everything that decides a stream's bits: equal fingerprints, tokens and seeds mean equal streams.

    weights     the file's metadata and every byte that was loaded
    graph       the step as it was recorded: operations, wiring, epsilons, scales, rotary frequencies
    backend     the kernels' sources, their compiler and, on a GPU, its model
    sources     what unpacks weights, draws tokens, and finds stop strings in text
    kv type     how keys and values are kept
    functions   cosine, sine and e^x of this machine's libraries, widely sampled: all else is IEEE arithmetic
    probe       the logits of a short prompt, from the very code and weights that will run

The last would differ where a compiler rounds otherwise than its sources say. It depends on no thread count and no
width, since no row does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
from decodepool_kernels import scales
from decodepool_kernels.graph import Graph, Tensor
from decodepool_sizing.kv import KVType

from decodepool_worker.engine.rows import PAGE_TOKENS, Engine, Span

PROBE_TOKENS = 16
"""Positions 0 to 15: every pair of every head turns, and attention has something to weigh. Less than a page, so that
every plan has room for them.
"""
assert PROBE_TOKENS <= PAGE_TOKENS

_WORKER = Path(__file__).parents[1]
STREAM_SOURCES = (
    *sorted((_WORKER / "weights").glob("*.py")),
    Path(scales.__file__),
    *sorted((_WORKER / "text").glob("*.py")),
    _WORKER / "engine/sampling.py",
    _WORKER / "engine/device_sampling.py",
    _WORKER / "engine/device_draws.py",
    _WORKER / "engine/philox.py",
    Path(__file__),
)
"""Files that decide bits and are not the backend's. Those of `model` are not here: what they record is digested."""


def stream_fingerprint(
    engine: Engine, graph: Graph, weights_digest: str, kv_type: KVType, backend: Iterable[str]
) -> str:
    """Return the fingerprint of an engine that runs `graph`. Evaluates a short prompt in page 0 and slot 0."""
    parts = (
        weights_digest,
        graph_digest(graph),
        *backend,
        files_digest(STREAM_SOURCES),
        kv_type.value,
        elementary_functions_digest(),
        probe_digest(engine),
    )
    return "dp-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def graph_digest(graph: Graph) -> str:
    """Digest every operation: its type, its numbers and names, and by their order the tensors it takes and gives."""
    digest, order = hashlib.sha256(), dict[Tensor, int]()
    for operation in graph.operations:
        digest.update(type(operation).__name__.encode())
        for operand in fields(operation):
            value = getattr(operation, operand.name)
            if isinstance(value, Tensor):
                value = order.setdefault(value, len(order)), value.width
            digest.update(f" {operand.name}={value!r}".encode())
        digest.update(b"\n")
    return digest.hexdigest()


def files_digest(files: Iterable[Path]) -> str:
    """Digest files, their names included, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def elementary_functions_digest() -> str:
    """Digest what libm's cosine and sine (rotary angles) and NumPy's e^x (sampling) give here, of many numbers."""
    angles = np.arange(1, 4096) * 1.618
    cosines = np.array([f(angle) for angle in angles for f in (math.cos, math.sin)])
    return hashlib.sha256(cosines.tobytes() + np.exp(-angles / 64).tobytes()).hexdigest()


def probe_digest(engine: Engine) -> str:
    """Digest the logits after a prompt that every model has: all but its last token in wide steps, the last alone."""
    tokens = [position * 7919 % engine.vocabulary_size for position in range(PROBE_TOKENS)]
    edges = [*range(0, PROBE_TOKENS - 1, engine.max_step_rows), PROBE_TOKENS - 1, PROBE_TOKENS]
    for first, last in pairwise(edges):
        engine.step([Span([0], first, tokens[first:last], slot=0)])
    return hashlib.sha256(engine.logits(0).tobytes()).hexdigest()
