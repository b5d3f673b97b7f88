"""What a stream's bits depend on changes the fingerprint; what they do not, does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decodepool_kernels.graph import Graph, Matrix, Rotation, Vector
from decodepool_sizing.kv import KVType
from decodepool_worker.engine import fingerprint
from decodepool_worker.engine.fingerprint import STREAM_SOURCES, graph_digest, probe_digest, stream_fingerprint
from decodepool_worker.engine.open import Wanted, open_model
from decodepool_worker.engine.rows import Engine, Outcome, Span
from numpy.typing import NDArray

from tests.tiny.catalogue import open_tiny
from tests.tiny.models import Tiny, write

MakeFile = Callable[[Tiny], Path]
TINY = Tiny("qwen3", head_norms=True)


def opened(path: Path, **wanted: Any) -> str:
    loaded = open_model(path, Wanted(**{"context_tokens": 64, "sessions": 2, **wanted}))
    loaded.engine.close()
    return loaded.fingerprint


@pytest.fixture
def usual(tiny_file: MakeFile) -> str:
    return opened(tiny_file(TINY))


SAME: dict[str, dict[str, Any]] = {
    "again": {},
    "one thread": {"threads": 1},
    "three threads": {"threads": 3},
    "longer sessions": {"context_tokens": 300},
    "one session": {"sessions": 1},
}


@pytest.mark.parametrize("wanted", SAME.values(), ids=list(SAME))
def test_how_much_a_worker_holds_and_how_fast_changes_nothing(
    usual: str, tiny_file: MakeFile, wanted: dict[str, Any]
) -> None:
    assert opened(tiny_file(TINY), **wanted) == usual


@pytest.mark.parametrize("kv_type", [KVType.F32])
def test_how_keys_and_values_are_kept_counts(usual: str, tiny_file: MakeFile, kv_type: KVType) -> None:
    assert opened(tiny_file(TINY), kv_type=kv_type) != usual


def test_one_byte_of_one_weight_counts(usual: str, tiny_file: MakeFile, tmp_path: Path) -> None:
    data = bytearray(tiny_file(TINY).read_bytes())
    data[-1] ^= 1
    (tmp_path / "other.gguf").write_bytes(data)
    assert opened(tmp_path / "other.gguf") != usual


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("one") / "tiny.gguf"
    write(TINY, path)
    with open_tiny(path, context=64, sessions=1) as engine:
        yield engine


def named(engine: Engine, graph: Graph | None = None, backend: Sequence[str] = ("cpu", "k")) -> str:
    return stream_fingerprint(engine, graph or recorded(), "w", KVType.F16, backend)


NEEDED = (
    "formats",
    "scales",
    "matrices",
    "loader",
    "sampling",
    "device_sampling",
    "device_draws",
    "philox",
    "detokenizer",
    "stops",
    "pieces",
    "templates",
)


def test_every_file_between_a_weight_and_a_character_is_named() -> None:
    assert {f"{name}.py" for name in NEEDED} <= {file.name for file in STREAM_SOURCES}
    assert len(STREAM_SOURCES) == len(set(STREAM_SOURCES))


@pytest.mark.parametrize("source", STREAM_SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_one_byte_of_one_source_counts(
    engine: Engine, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, copy = named(engine), tmp_path / source.name
    content = bytearray(source.read_bytes())

    def with_copy() -> str:
        copy.write_bytes(content)
        monkeypatch.setattr(fingerprint, "STREAM_SOURCES", [copy if s == source else s for s in STREAM_SOURCES])
        return named(engine)

    assert with_copy() == usual
    content[len(content) // 2] ^= 1
    assert with_copy() != usual


@pytest.mark.parametrize("backend", [("cpu", "other"), ("cuda", "k")], ids=str)
def test_kernels_and_device_count(engine: Engine, backend: tuple[str, str]) -> None:
    assert named(engine, backend=backend) != named(engine)


class OneUlpOff:
    """An engine whose compiled code rounds one logit otherwise."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.page_count, self.slot_count = engine.page_count, engine.slot_count
        self.max_step_rows, self.vocabulary_size = engine.max_step_rows, engine.vocabulary_size

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        return self._engine.step(spans)

    def logits(self, slot: int) -> NDArray[np.float32]:
        row = self._engine.logits(slot).copy()
        row[5] = np.nextafter(row[5], np.float32(9))
        return row

    def copy_page(self, source: int, target: int) -> None: ...
    def copy_logits(self, source: int, target: int) -> None: ...
    def close(self) -> None: ...


def test_code_that_rounds_one_logit_otherwise_counts(engine: Engine) -> None:
    assert named(OneUlpOff(engine)) != named(engine)


@dataclass
class Narrow(OneUlpOff):
    """The same engine with a few rows a step."""

    def __init__(self, engine: Engine, rows: int) -> None:
        super().__init__(engine)
        self.max_step_rows = rows

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        assert sum(len(span.tokens) for span in spans) <= self.max_step_rows
        return super().step(spans)

    def logits(self, slot: int) -> NDArray[np.float32]:
        return self._engine.logits(slot)


@pytest.mark.parametrize("rows", [1, 4, 15])
def test_the_width_of_steps_does_not_count(engine: Engine, rows: int) -> None:
    assert probe_digest(Narrow(engine, rows)) == probe_digest(engine)


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_another_libm_counts(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, own = named(engine), getattr(math, name)
    monkeypatch.setattr(math, name, lambda angle: np.nextafter(own(angle), 2) if angle > 6000 else own(angle))
    assert named(engine) != usual


@dataclass(frozen=True)
class Numbers:
    """Every number and name that a graph records."""

    epsilon: float = 1e-6
    last_epsilon: float = 1e-6
    scale: float = 0.25
    frequencies: tuple[float, ...] = (1.0, 0.1)
    magnitude: float = 1.0
    interleaved: bool = False
    layer: int = 0
    heads: int = 2
    window: int | None = None
    sinks: str | None = None
    soft_cap: float | None = None
    matrix: str = "blk.0.attn_q.weight"
    bias: str | None = None
    swapped: bool = False
    twice: bool = False


def recorded(numbers: Numbers | None = None) -> Graph:
    n, g = numbers or Numbers(), Graph()
    x = g.embed(Matrix("token_embd.weight", 8, 32))
    h = g.norm(x, Vector("norm.weight", 8), n.epsilon)
    q = g.matmul(h, Matrix(n.matrix, 8, 8), Vector(n.bias, 8) if n.bias else None)
    k = g.matmul(h, Matrix("blk.0.attn_k.weight", 8, 8))
    g.rope(q, 2, Rotation(n.frequencies, n.magnitude, n.interleaved))
    operands = (k, q) if n.swapped else (q, k)
    sizes: dict[str, Any] = {"layer": n.layer, "heads": n.heads, "kv_heads": n.heads, "scale": n.scale}
    sinks = Vector(n.sinks, n.heads) if n.sinks else None
    y = g.attention(*operands, h, **sizes, window=n.window, sinks=sinks, soft_cap=n.soft_cap)
    z = x + y
    if n.twice:
        z = z + y
    g.logits(z, Vector("output_norm.weight", 8), n.last_epsilon, Matrix("output.weight", 8, 32))
    return g


CHANGES: dict[str, Any] = {
    "epsilon": 1e-5,
    "last_epsilon": 1e-5,
    "scale": float(np.nextafter(0.25, 1)),
    "frequencies": (1.0, float(np.nextafter(0.1, 1))),
    "magnitude": float(np.nextafter(1, 2)),
    "interleaved": True,
    "layer": 1,
    "heads": 4,
    "window": 128,
    "sinks": "blk.0.attn_sinks.weight",
    "soft_cap": 50.0,
    "matrix": "blk.0.attn_v.weight",
    "bias": "blk.0.attn_q.bias",
    "swapped": True,
    "twice": True,
}


@pytest.mark.parametrize(("field", "value"), CHANGES.items(), ids=list(CHANGES))
def test_everything_that_a_graph_records_counts(engine: Engine, field: str, value: Any) -> None:
    assert graph_digest(recorded()) == graph_digest(recorded())
    changed = recorded(replace(Numbers(), **{field: value}))
    assert named(engine, changed) != named(engine)


def test_the_engine_that_opens_digests_the_graph_it_runs(
    usual: str, tiny_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "graph_digest", lambda graph: "other")
    assert opened(tiny_file(TINY)) != usual
