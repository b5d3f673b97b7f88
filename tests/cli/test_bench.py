from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from decodepool_cli import measuring
from decodepool_cli.bench import _show
from decodepool_cli.cases import COMPACT_CASES, even_cases, shape_cases
from decodepool_cli.measurement import measure
from decodepool_cli.provenance import commit
from decodepool_cli.subjects import file_subject, step_weight_bytes
from decodepool_sizing.header import read_header
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.open import Loaded, Wanted, open_model
from decodepool_worker.model.named_shapes import SHAPES

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda.profile import Phase

from tests.cli.conftest import Call
from tests.cli.models import write_untold


@pytest.fixture(autouse=True)
def a_quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time each width for no longer than these tests need."""
    monkeypatch.setattr(measuring, "WARM_UP_SECONDS", 0.01)
    monkeypatch.setattr(measuring, "STEP_SECONDS", 0.05)


@pytest.fixture(scope="module")
def untold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untold(tmp_path_factory.mktemp("models") / "untold.gguf")


def test_it_measures_steps_prefill_and_memory(call: Call, untold: Path) -> None:
    done = call("bench", untold, "--widths", "1,3", "--context", 70, "--kv-type", "f32", "--json")
    assert done.code == 0, done.err
    report = done.json
    assert [(row["sessions"], row["context"], row["kv_type"]) for row in report["decode"]] == [
        (1, 70, "f32"),
        (3, 70, "f32"),
    ]
    assert [(row["sessions"], row["temperature"], row["top_p"]) for row in report["sampled"]] == [
        (1, 0.8, 0.95),
        (3, 0.8, 0.95),
    ]
    for row in report["decode"] + report["sampled"]:
        assert 0 < row["step_ms_min"] <= row["step_ms"] <= row["step_ms_max"]
        assert row["tokens_per_second"] == pytest.approx(row["sessions"] * 1000 / row["step_ms"], rel=0.02)
    assert report["prefill"][0]["context"] == 70
    assert report["prefill"][0]["tokens_per_second"] > 0
    assert report["memory"]["measured_bytes"] > report["memory"]["planned"]["weight_bytes"] > 0
    assert report["machine"]["cores"] >= 1
    assert report["command"].startswith("decodepool bench ")
    assert (report["model"], report["device"]) == ("untold.gguf", "cpu")


def test_each_row_has_what_was_watched_while_it_was_timed(untold: Path) -> None:
    watched: list[tuple[float, float]] = []

    def watch(began: float, ended: float) -> dict[str, float]:
        watched.append((began, ended))
        return {"sm_mhz": len(watched)}

    with file_reader(untold) as reader:
        subject = file_subject(untold, read_header(reader).tensors, Wanted(1))
    report = measure(subject, even_cases(10, [1, 2], is_profiled=False), watch)
    rows = report["prefill"] + report["decode"] + report["sampled"]
    assert sorted(row["sm_mhz"] for row in rows) == [1, 2, 3, 4, 5]
    assert all(earlier <= later for earlier, later in pairwise(instant for pair in watched for instant in pair))


def test_people_get_tables(call: Call, untold: Path) -> None:
    done = call("bench", untold, "--widths", "2", "--context", 10)
    assert done.code == 0, done.err
    assert done.out.startswith("Timing 2 kinds of steps, 0 s at least, once the model is loaded.\n")
    assert "tokens/s" in done.out
    assert "sampled ms" in done.out
    assert "A prompt of 10 tokens" in done.out


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--widths", "1,0"], "--widths: '0'"),
        (["--widths", "1,x"], "--widths: 'x'"),
        (["--widths", "257"], "--widths: '257'"),
        (["--widths", ""], "--widths: ''"),
        (["--context", "0"], "--context"),
        (["--context", "4096"], "--context: 4096 is more than"),
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_named(call: Call, untold: Path, options: list[str], fault: str) -> None:
    done = call("bench", untold, *options)
    assert done.code == 2
    assert fault in done.err
    assert done.err.count("\n") == 1


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_a_commit_is_named_and_marked_once_something_changed(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("1")
    assert commit(source) == "unknown"
    git(tmp_path, "init")
    assert commit(source) == "unknown"  # a checkout, but not of this file
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert len(commit(source)) == 40
    source.write_text("2")
    assert commit(source).endswith("-dirty")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "give one of FILE and --shape"),
        (["x.gguf", "--shape", "llama-3-8b"], "give one of FILE and --shape"),
        (["--shape", "llama-3-8b"], "--shape: only with --device cuda"),
        (["x.gguf", "--profile"], "--profile: only with --device cuda"),
        (["--shape", "gpt-9", "--device", "cuda"], "no shape is called 'gpt-9'"),
        (["--shape", "llama-3-8b", "--type", "Q9", "--device", "cuda"], "no weights are called 'Q9'"),
        (["--shape", "llama-3-8b", "--device", "cuda", "--context", "131072"], "--context: 131072 is more than"),
    ],
    ids=str,
)
def test_a_shape_asked_for_wrongly_is_told_before_any_gpu_is(call: Call, words: list[str], fault: str) -> None:
    done = call("bench", *words)
    assert done.code == 2
    assert fault in done.err
    assert done.err.count("\n") == 1


def test_the_help_tells_what_a_shape_is_held_against_and_which_there_are(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    told = call("bench", "--help").out
    assert all(name in told for name in SHAPES)
    assert "Q8_0 by default" in told
    assert "With --widths, --context or another --kv-type than f16, that alone is measured." in told
    cases = shape_cases(is_profiled=False)
    for context in {context for context, _ in cases.decodes}:
        counts = [sessions for each, sessions in cases.decodes if each == context]
        counted = f"{counts[0]} {'to' if len(counts) > 2 else 'and'} {counts[-1]}"
        assert re.search(rf"{counted}( sessions)? of {context >> 10}k", told)
    ((context, sessions),) = COMPACT_CASES.decodes
    assert f"{sessions} of {context >> 10}k kept as q8_0" in told


def test_a_type_is_a_shapes_alone(call: Call, untold: Path) -> None:
    done = call("bench", untold, "--type", "Q8_0")
    assert done.code == 2
    assert "--type: a file has its own" in done.err


LEAN = """
import sys
for name in ("numba", "llvmlite", "pydantic", "psutil", "typer", "rich", "jinja2", "tokenizers", "torch", "aiohttp"):
    sys.modules[name] = None
import bench.gpu.h200
import decodepool_worker.engine.random_cuda
"""


def test_a_gpu_is_measured_with_the_sources_numpy_and_cuda_alone() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LEAN], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@dataclass
class StillGpu:
    """Answers as a GPU's report does, of a GPU that takes 1 ms a step."""

    profiled: list[int] = field(default_factory=list)

    def described(self) -> dict[str, str | int]:
        return {"gpu": "a still GPU", "cuda_driver": "1.0", "nvrtc": "1.0"}

    def read_bandwidth(self) -> float:
        return 1e9

    def step_seconds(self, rows: int) -> float:
        return 1e-3

    def phases(self, rows: int) -> list[Phase]:
        self.profiled.append(rows)
        return [Phase("attention", 2, 1e-4, 0), Phase("product 8 x 8", 2, 1e-3, 500_000)]


@pytest.fixture
def on_a_still_gpu(monkeypatch: pytest.MonkeyPatch, untold: Path) -> StillGpu:
    """Have the CPU engine stand for a GPU's."""
    gpu = StillGpu()

    @contextmanager
    def opened(file: Path, wanted: Wanted) -> Iterator[Loaded]:
        loaded = open_model(file, replace(wanted, device="cpu"))
        yield replace(loaded, gpu=gpu)  # type: ignore[arg-type]
        loaded.engine.close()

    monkeypatch.setattr("decodepool_cli.engines.opened", opened)
    return gpu


def test_on_a_gpu_steps_stand_beside_their_floor_and_phases_beside_the_bandwidth(
    call: Call, untold: Path, on_a_still_gpu: StillGpu
) -> None:
    words = ("bench", untold, "--device", "cuda", "--widths", "1,3", "--context", 70, "--profile")
    report = call(*words, "--json").json
    assert report["read_bytes_per_second"] == 10**9
    assert report["machine"]["gpu"] == "a still GPU"
    for row in report["decode"]:
        assert row["device_ms"] == 1
        assert row["host_ms"] == pytest.approx(row["step_ms"] - 1, abs=2e-3)
        weights, kv = step_weights(untold), row["sessions"] * 70 * report["memory"]["planned"]["session_bytes"] // 192
        assert row["floor_fraction"] == pytest.approx((weights + kv) / 1e6 / row["step_ms"], rel=0.3)
    assert on_a_still_gpu.profiled == [1, 3]
    products = [phase for profile in report["profiles"] for phase in profile["phases"] if phase["name"] != "attention"]
    assert [phase["read_fraction"] for phase in products] == [0.5, 0.5]
    shown = call(*words)
    assert "a still GPU, reads 0.00 TB/s" in shown.out
    assert "of read bandwidth" in shown.out


def test_no_number_of_a_table_is_shortened_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"sessions": 64, "context": 131_072, "kv_type": "q8_0", "tokens_per_second": 123_456.78, "steps": 128}
    times = {"step_ms": 1234.567, "step_ms_min": 1233.333, "step_ms_max": 1299.999}
    decode = row | times | {"host_ms": 1111.11, "floor_fraction": 0.987}
    name = "product 14336 x 4096 and its activation"
    phase = {"name": name, "launches": 12_345, "ms": 1234.567, "bytes": 10**12}
    profile = {"sessions": 64, "context": 131_072, "phases": [phase | {"read_fraction": 0.876}]}
    machine = {"cpu": "a CPU", "cores": 16, "memory_bytes": 2**37, "gpu": "a GPU", "cuda_driver": "13.0", "nvrtc": "13"}
    report = {
        "machine": machine,
        "memory": {"planned_bytes": 2**33, "measured_bytes": 2**33},
        "commit": "0" * 40,
        "read_bytes_per_second": 4 * 10**12,
        "model": "a model",
        "decode": [decode],
        "sampled": [row | times],
        "profiles": [profile],
        "prefill": [],
    }
    _show(report)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    times_shown = ["1234.57", "1233.33", "1300.00", "128", "1234.57", "1111.11"]
    assert ["64", "131,072", "123,456.8", *times_shown, "99%", "q8_0"] in lines
    assert [*name.split(), "12345", "1234.567", "1,000,000", "88%"] in lines


def step_weights(file: Path) -> int:
    with file_reader(file) as reader:
        return step_weight_bytes(read_header(reader).tensors)
