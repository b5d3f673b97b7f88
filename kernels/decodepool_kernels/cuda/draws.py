"""Tokens drawn on the device, from rows whose logits a step just left: sources/draw.cuh, launched behind a step's graph
where a row asks for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decodepool_kernels.cuda.device import Function, Gpu, Launch
from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_kernels.cuda.inputs import MAX_ROWS
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer
from decodepool_kernels.cuda.turns import STEPS_UNDER_WAY

THREADS = 1024
CLUSTER = 8
DRAW_CLUSTER_CAPABILITY = 90
MOST_TOKENS = 1 << 18
"""Of a vocabulary: the sum of so many weights fits into 63 bits, their ids into 18."""
USED, HAS_SHARE = 1, 2

DRAW = np.dtype([
    ("temperature", "f8"), ("seed", "u8"), ("least", "u8"),
    ("position", "u4"), ("top_k", "u4"), ("share", "u4"), ("used", "u4"),
])  # fmt: skip
"""What a row brings, as the kernel reads it."""
NO_DRAW = (0.0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class DeviceDraw:
    """How a row's token is drawn, as engine/device_sampling.py tells. `top_k` 0 keeps all, and so does `share` None."""

    temperature: float
    seed: int
    position: int
    top_k: int
    share: int | None
    least: int


@dataclass(frozen=True)
class LogitsSource:
    """Where rows are drawn from: resident logits and the step's words; where its answers and each slot's last token are
    kept.
    """

    logits: int
    stride: int
    vocabulary_size: int
    answers: int
    step: int
    last_tokens: int


class Draws:
    """Draws tokens. The kernel is loaded here: a first draw waits for nothing."""

    def __init__(self, gpu: Gpu, library: KernelLibrary, source: LogitsSource) -> None:
        if source.vocabulary_size > MOST_TOKENS:
            raise CannotCompile(f"a vocabulary of {source.vocabulary_size}: tokens are drawn from up to {MOST_TOKENS}")
        self._gpu = gpu
        self._function, self._blocks = _program(gpu, library, source.vocabulary_size)
        asked = gpu.pinned(STEPS_UNDER_WAY * MAX_ROWS * DRAW.itemsize // 4).view(DRAW)
        self._asked = asked.reshape(STEPS_UNDER_WAY, MAX_ROWS)
        row = (pointer(source.logits), ctypes.c_longlong(source.stride), ctypes.c_int(source.vocabulary_size))
        places = (source.answers, asked.ctypes.data, source.step, source.last_tokens)
        self._arguments = (*row, *(pointer(address) for address in places))

    def ask(self, number: int, draws: Sequence[DeviceDraw | None]) -> None:
        """Write down what the step with a number draws."""
        rows = [NO_DRAW if draw is None else _row(draw) for draw in draws]
        self._asked[number % STEPS_UNDER_WAY, : len(rows)] = rows

    def draw(self, rows: int) -> None:
        """Draw what the step asked for so many rows into their answers, once it has ended."""
        self._gpu.launch(Launch("draw", self._function, (rows * self._blocks, 1), self._arguments))


def _program(gpu: Gpu, library: KernelLibrary, vocabulary_size: int) -> tuple[Function, int]:
    """Return what draws a row's token, and the thread blocks that it takes: a cluster where the device has room."""
    if gpu.capability == DRAW_CLUSTER_CAPABILITY:
        items = -(-vocabulary_size // (THREADS * CLUSTER))
        function = library.function("draw_cluster", {"ITEMS": items}, THREADS)
        if gpu.clusters_at_once(function, CLUSTER) > 0:
            return function, CLUSTER
    return library.function("draw", {"ITEMS": -(-vocabulary_size // THREADS)}, THREADS), 1


def _row(draw: DeviceDraw) -> tuple[float, int, int, int, int, int, int]:
    used = USED if draw.share is None else USED | HAS_SHARE
    top_k = min(draw.top_k, MOST_TOKENS)
    return draw.temperature, draw.seed, draw.least, draw.position, top_k, draw.share or 0, used
