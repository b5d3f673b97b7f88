"""Products, attention and a whole layer of an 8B model, held to f64 at their full size: torch computes that on the GPU.

NumPy is the oracle of every other test; at these sizes it would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")
pytest.importorskip("torch", reason="did not run: torch is not installed")

import torch
from decodepool_kernels.cuda.backend import placed_matrix
from decodepool_kernels.cuda.device import PIECE_BYTES, Region
from decodepool_kernels.cuda.formats import REPACKED, device_bytes
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.packing import pack_float, quant_kind
from decodepool_kernels.cuda.pages import KV_BITS, KvPages
from decodepool_kernels.cuda.repack import Repacking
from decodepool_kernels.graph import Graph, Matrix, Rotation, Tensor, Vector
from decodepool_kernels.scales import products_of
from decodepool_sizing.layouts import QUANT_LAYOUTS
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.weights.formats import FORMATS
from decodepool_worker.weights.random_blocks import random_bytes

from tests.gpu.probe import Floats, Probe, Rows
from tests.gpu.test_attention import as_q8_0

if TYPE_CHECKING:
    from decodepool_kernels.cuda.device import Gpu
    from decodepool_kernels.cuda.records import DeviceMatrix

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

Record = Callable[[str, object], None]
"""Puts a figure beside a test's result."""

PRODUCT_BOUND, FAR_BOUND, ATTENTION_BOUND, LAYER_BOUND = 5e-7, 1e-6, 2e-6, 3e-5
"""Of the results' root mean square. FAR_BOUND is for types with minima, whose codes begin at 0, so that a product is
the difference of larger sums, and for those whose groups are one chain of 16 steps, each of which cuts off the sum. A
layer keeps keys and values in f16: one that lies between two of them may be rounded to either.
"""
WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 14336, 32, 8, 128, 128_256
"""Of Llama-3-8B."""
ROWS = 256
DECODED_OUTPUTS = 2048
"""Outputs of a matrix that are decoded at once, a thread each."""


class Random:
    """A random matrix of a file's type: on the device as the kernels keep it, and in f64."""

    def __init__(self, gpu: Gpu, kind: TensorType, outputs: int, inputs: int) -> None:
        self.kind, self.outputs, self.inputs, self.shape = kind, outputs, inputs, (outputs, inputs)
        self.raw = random_bytes(kind, inputs, outputs, np.random.default_rng(outputs))
        self.placed = self._placed(gpu)

    def _placed(self, gpu: Gpu) -> DeviceMatrix:
        if self.kind is TensorType.F32:
            return placed_matrix(gpu.place, pack_float("F32", np.frombuffer(self.raw, np.float32).reshape(self.shape)))
        region = Region(gpu, device_bytes(self.kind, (self.inputs, self.outputs)) + PIECE_BYTES)
        repacking = Repacking(gpu, KernelLibrary(gpu), region, 1)
        zero = FORMATS[self.kind.name].zero if self.kind.name in FORMATS else 0
        filling = repacking.matrix("m", self.kind, self.outputs, self.inputs, zero)
        filling.add(self.raw)
        assert repacking.finish() == []
        return filling.matrix

    def values(self) -> Any:
        """Return `[outputs, inputs]` f64 on the device."""
        row_bytes = len(self.raw) // self.outputs
        size = DECODED_OUTPUTS * row_bytes
        with ThreadPoolExecutor() as threads:
            parts = threads.map(self._decoded, [self.raw[at : at + size] for at in range(0, len(self.raw), size)])
            return torch.cat([part.cuda().double() for part in parts])

    def _decoded(self, raw: bytes) -> Any:
        """Return rows, exact in the type that they have here."""
        if self.kind.block_elements == 1:
            floats = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}
            return torch.frombuffer(bytearray(raw), dtype=floats[self.kind]).reshape(-1, self.inputs)
        made, blocks = FORMATS[self.kind.name], np.frombuffer(raw, np.uint8).reshape(-1, self.kind.block_bytes)
        decoded = made.decode(blocks)
        codes = torch.from_numpy(decoded.codes.astype(np.int16) - np.int16(made.zero))
        scales = torch.from_numpy(np.ascontiguousarray(products_of(decoded.scales)).astype(np.float64))
        values = codes.double().reshape(*scales.shape, -1) * scales[..., None]
        if decoded.minima is not None:
            values += torch.from_numpy(np.ascontiguousarray(products_of(decoded.minima)).astype(np.float64))[..., None]
        return values.reshape(-1, self.inputs)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def in_f64(values: Floats) -> Any:
    return torch.from_numpy(values).cuda().double()


def error(found: Floats, wanted: Any) -> float:
    """Return the distance as a part of what was wanted: the worst row's root of the sum of squares."""
    apart = in_f64(found) - wanted
    return float((apart.square().sum(1) / wanted.square().sum(1)).max().sqrt())


CASES = [
    *((kind, 2 * FEED_FORWARD, WIDTH) for kind in (*REPACKED, TensorType.F32)),
    *((kind, WIDTH, FEED_FORWARD) for kind in (TensorType.Q8_0, TensorType.Q4_K, TensorType.F16)),
    *((kind, VOCABULARY, WIDTH) for kind in (TensorType.Q8_0, TensorType.Q6_K)),
]


@pytest.mark.parametrize(("kind", "outputs", "inputs"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_product_of_full_size_is_near_f64_and_the_same_bytes_at_every_width(
    gpu: Gpu, kind: TensorType, outputs: int, inputs: int, record_property: Record
) -> None:
    matrix, x = Random(gpu, kind, outputs, inputs), normal(1, ROWS, inputs)
    probe = Probe(
        gpu, {"x": x}, lambda g, t: g.matmul(t["x"], Matrix("m", inputs, outputs)), placed={"m": matrix.placed}
    )
    found = probe.rows(range(ROWS))
    distance = error(found, in_f64(x) @ matrix.values().T)
    record_property("error", distance)
    layout = QUANT_LAYOUTS.get(kind.name)
    is_far = layout is not None and (layout.has_minimum or quant_kind(layout).has_group_chains)
    assert distance < (FAR_BOUND if is_far else PRODUCT_BOUND)
    for rows in (range(7, 8), range(100, 116), range(200, 232)):
        assert probe.rows(rows).tobytes() == found[rows.start : rows.stop].tobytes(), rows


def attended(q: Any, k: Any, v: Any, first: int) -> Any:
    """Return the attention of rows `[rows, heads, dim]` from position `first` on, over `[tokens, kv heads, dim]`."""
    rows, seen = len(q), first + len(q)
    positions, group = torch.arange(seen, device="cuda"), q.shape[1] // k.shape[1]
    hidden = positions[None] > first + torch.arange(rows, device="cuda")[:, None]
    heads = []
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:seen, head // group].T * HEAD_DIM**-0.5
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(1) @ v[:seen, head // group])
    return torch.stack(heads, 1).reshape(rows, -1)


@pytest.mark.parametrize("kind", KV_BITS)
def test_attention_over_32k_tokens_is_near_f64(gpu: Gpu, kind: str, record_property: Record) -> None:
    tokens, checked = 32768, (0, 8192, 16384 - ROWS, 32768 - ROWS)
    q, k, v = normal(1, tokens, HEADS * HEAD_DIM), *(normal(seed, tokens, KV_HEADS * HEAD_DIM) for seed in (2, 3))
    pages = KvPages(gpu, [(KV_HEADS, HEAD_DIM)], tokens // 64, kind)

    def build(g: Graph, t: dict[str, Tensor]) -> Tensor:
        return g.attention(t["q"], t["k"], t["v"], layer=0, heads=HEADS, kv_heads=KV_HEADS, scale=HEAD_DIM**-0.5)

    probe, table = Probe(gpu, {"q": q, "k": k, "v": v}, build, pages=pages), range(tokens // 64)
    in_pages = (as_q8_0(part) if kind == "q8_0" else part.astype(np.float16).astype(np.float32) for part in (k, v))
    kept_k, kept_v = (in_f64(part).reshape(tokens, KV_HEADS, -1) for part in in_pages)
    worst = 0.0
    for first in range(0, tokens, ROWS):
        found = probe.step(Rows(range(first, first + ROWS), table, first))
        if first in checked:
            rows = in_f64(q[first : first + ROWS]).reshape(ROWS, HEADS, HEAD_DIM)
            worst = max(worst, error(found, attended(rows, kept_k, kept_v, first)))
            last = first + ROWS - 1
            assert probe.step(Rows([last], table, last)).tobytes() == found[-1].tobytes(), last
    record_property("error", worst)
    assert worst < ATTENTION_BOUND


ROTATION = Rotation(tuple(500_000.0 ** (-i / 64) for i in range(64)), 1.0, interleaved=True)
MATRICES = {
    "q": (WIDTH, WIDTH), "k": (KV_HEADS * HEAD_DIM, WIDTH), "v": (KV_HEADS * HEAD_DIM, WIDTH), "o": (WIDTH, WIDTH),
    "gate": (FEED_FORWARD, WIDTH), "up": (FEED_FORWARD, WIDTH), "down": (WIDTH, FEED_FORWARD),
}  # fmt: skip
NORMS = ("before attention", "before feed-forward")
EPSILON = 1e-5


def layer(g: Graph, t: dict[str, Tensor]) -> Tensor:
    """One layer of Llama-3-8B."""

    def linear(x: Tensor, name: str) -> Tensor:
        outputs, inputs = MATRICES[name]
        return g.matmul(x, Matrix(name, inputs, outputs))

    h = g.norm(t["x"], Vector(NORMS[0], WIDTH), EPSILON)
    q, k, v = (linear(h, name) for name in "qkv")
    q, k = g.rope(q, HEADS, ROTATION), g.rope(k, KV_HEADS, ROTATION)
    mixed = g.attention(q, k, v, layer=0, heads=HEADS, kv_heads=KV_HEADS, scale=HEAD_DIM**-0.5)
    x = t["x"] + linear(mixed, "o")
    h = g.norm(x, Vector(NORMS[1], WIDTH), EPSILON)
    gate, up = linear(h, "gate"), linear(h, "up")
    return x + linear(g.swiglu(gate, up), "down")


def layer_in_f64(x: Any, matrices: dict[str, Any], vectors: dict[str, Any]) -> Any:
    """The same of a session's first tokens, but for keys and values: these are f16, as pages keep them."""

    def norm(x: Any, name: str) -> Any:
        return x / (x.square().mean(1, keepdim=True) + EPSILON).sqrt() * vectors[name]

    tokens, h = len(x), norm(x, NORMS[0])
    q, k, v = ((h @ matrices[name].T).reshape(tokens, -1, HEAD_DIM) for name in "qkv")
    frequencies = torch.tensor(ROTATION.frequencies, dtype=torch.float64, device="cuda")
    angles = torch.arange(tokens, device="cuda")[:, None, None] * frequencies
    for part in (q, k):
        first, second = part[..., 0::2].clone(), part[..., 1::2].clone()
        part[..., 0::2] = first * angles.cos() - second * angles.sin()
        part[..., 1::2] = first * angles.sin() + second * angles.cos()
    k, v = (part.half().double() for part in (k, v))
    x = x + attended(q, k, v, 0) @ matrices["o"].T
    h = norm(x, NORMS[1])
    gated = torch.nn.functional.silu(h @ matrices["gate"].T) * (h @ matrices["up"].T)
    return x + gated @ matrices["down"].T


@pytest.mark.parametrize("kind", [TensorType.Q8_0, TensorType.Q4_K, TensorType.BF16], ids=lambda kind: kind.name)
def test_a_layer_of_llama_3_8b_is_near_f64(gpu: Gpu, kind: TensorType, record_property: Record) -> None:
    tokens = 320
    x, matrices = normal(1, tokens, WIDTH), {name: Random(gpu, kind, *shape) for name, shape in MATRICES.items()}
    vectors = {name: (1 + normal(seed, WIDTH) / 4).astype(np.float32) for seed, name in enumerate(NORMS)}
    probe = Probe(
        gpu,
        {"x": x},
        layer,
        placed={name: matrix.placed for name, matrix in matrices.items()},
        vectors=vectors,
        pages=KvPages(gpu, [(KV_HEADS, HEAD_DIM)], tokens // 64),
    )
    chunks = [range(ROWS), range(ROWS, tokens - 1), range(tokens - 1, tokens)]
    found = np.concatenate([probe.step(Rows(rows, range(tokens // 64), rows.start)) for rows in chunks])
    in_full = {name: matrix.values() for name, matrix in matrices.items()}
    wanted = layer_in_f64(in_f64(x), in_full, {name: in_f64(vector) for name, vector in vectors.items()})
    distance = error(found, wanted)
    record_property("error", distance)
    assert distance < LAYER_BOUND
