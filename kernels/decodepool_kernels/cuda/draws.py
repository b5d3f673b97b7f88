"""Tokens drawn on the device, from rows whose logits a step just left: sources/draw.cuh, launched behind a step's graph
where a row asks for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from decodepool_kernels.cuda.device import Gpu, Launch
from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.records import pointer
from decodepool_kernels.cuda.turns import STEPS_UNDER_WAY

THREADS = 1024
CLUSTER = 8
CLUSTERS_CAPABILITY = 90
MOST_TOKENS = 1 << 18
"""Of a vocabulary: the sum of so many weights fits into 63 bits, their ids into 18."""
USED, HAS_SHARE = 1, 2

DRAW = np.dtype([
    ("temperature", "f8"), ("seed", "u8"), ("least", "u8"),
    ("position", "u4"), ("top_k", "u4"), ("share", "u4"), ("used", "u4"),
])  # fmt: skip
"""What a row brings, as the kernel reads it."""


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
    """Where rows are drawn from: resident logits, the best of each row that is wanted, the step's words; and where each
    slot's last token is kept.
    """

    logits: int
    stride: int
    vocabulary_size: int
    best: int
    step: int
    last_tokens: int


class Draws:
    """Draws up to `max_rows` tokens a step. The kernel is loaded here: a first draw waits for nothing. `size_bytes` are
    those on the device.
    """

    def __init__(self, gpu: Gpu, library: KernelLibrary, source: LogitsSource, max_rows: int) -> None:
        if source.vocabulary_size > MOST_TOKENS:
            raise CannotCompile(f"a vocabulary of {source.vocabulary_size}: tokens are drawn from up to {MOST_TOKENS}")
        self._gpu, self._cluster = gpu, CLUSTER if gpu.capability == CLUSTERS_CAPABILITY else 1
        items = -(-source.vocabulary_size // (THREADS * self._cluster))
        name = "draw_cluster" if self._cluster > 1 else "draw"
        self._function = library.function(name, {"ITEMS": items}, THREADS)
        words = max_rows * DRAW.itemsize // 4
        self._turns = cycle([(gpu.pinned(words), gpu.pinned(max_rows)) for _ in range(STEPS_UNDER_WAY)])
        self.size_bytes = 4 * (words + max_rows)
        self._device_words, self._device_drawn = gpu.allocate(4 * words), gpu.allocate(4 * max_rows)
        row = (pointer(source.logits), ctypes.c_longlong(source.stride), ctypes.c_int(source.vocabulary_size))
        places = (source.best, self._device_words, self._device_drawn, source.step, source.last_tokens)
        self._arguments = (*row, *(pointer(address) for address in places))

    def begin(self, draws: Sequence[DeviceDraw | None]) -> NDArray[np.int32]:
        """Draw where asked, in stream order; return where each row's token will be once the stream has come so far."""
        words, drawn = next(self._turns)
        rows = words.view(DRAW)
        for index, draw in enumerate(draws):
            rows[index] = (0.0, 0, 0, 0, 0, 0, 0) if draw is None else _row(draw)
        count = len(draws)
        self._gpu.upload(self._device_words, words, count * DRAW.itemsize)
        self._gpu.launch(Launch("draw", self._function, (count * self._cluster, 1), self._arguments))
        self._gpu.download(drawn, self._device_drawn, 4 * count)
        return drawn[:count]


def _row(draw: DeviceDraw) -> tuple[float, int, int, int, int, int, int]:
    used = USED if draw.share is None else USED | HAS_SHARE
    top_k = min(draw.top_k, MOST_TOKENS)
    return draw.temperature, draw.seed, draw.least, draw.position, top_k, draw.share or 0, used
