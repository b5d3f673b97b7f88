"""Compiled code on disk: made once, found again, never half of it, and done without where it cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep

import decodepool_kernels.cpu
import decodepool_sizing.layouts
import pytest
from decodepool_kernels.cpu import cache
from decodepool_kernels.cpu.compiling import compile_apart
from llvmlite import binding
from llvmlite.binding.targets import FeatureMap

ONE_STEP = """
import numpy as np
from decodepool_kernels.cpu.backend import CpuBackend
from decodepool_kernels.cpu.lower import Weights
from decodepool_kernels.cpu.packing import pack_float
from decodepool_kernels.cpu.pages import KvPages
from decodepool_kernels.graph import Graph, Matrix, Vector
from types import SimpleNamespace as Run
graph, pages = Graph(), KvPages("f32", [], 1)
x = graph.embed(Matrix("m", 32, 16))
graph.logits(x, Vector("w", 32), 1e-5, Matrix("m", 32, 16))
weights = Weights({"m": pack_float("F32", np.eye(16, 32, dtype=np.float32))}, {"w": np.ones(32, np.float32)})
backend = CpuBackend(graph, weights, pages, vocabulary_size=16, slots=1, max_rows=4, table_width=1, threads=2)
backend.run([Run(tokens=[3], pages=[0], position=0, slot=0)])
print(backend.logits(0).argmax())
backend.close()
"""
PACKAGES = [
    str(Path(decodepool_kernels.cpu.__file__).parents[2]),
    str(Path(decodepool_sizing.layouts.__file__).parents[1]),
]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES), **changes}


def one_step(**changes: str) -> str:
    """Run one step in a process of its own, see that it came out right, and return what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ONE_STEP],
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
    return done.stderr


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file under a folder, with its time and size."""
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*") if p.is_file()}


COMPILING = "compiling the kernels, once on this machine"
CANNOT_KEEP = "compiled kernels cannot be kept"


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_writes_nothing(tmp_path: Path) -> None:
    assert COMPILING in one_step(XDG_CACHE_HOME=str(tmp_path))
    kept = files(tmp_path)
    assert one_step(XDG_CACHE_HOME=str(tmp_path)) == ""
    assert {path: seen for path, seen in files(tmp_path).items() if not path.endswith(".lock")} == {
        path: seen for path, seen in kept.items() if not path.endswith(".lock")
    }


@pytest.mark.slow
def test_a_damaged_file_is_compiled_anew(tmp_path: Path) -> None:
    one_step(XDG_CACHE_HOME=str(tmp_path))
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[:100])
    assert COMPILING in one_step(XDG_CACHE_HOME=str(tmp_path))
    assert one_step(XDG_CACHE_HOME=str(tmp_path)) == ""


@pytest.mark.slow
def test_without_a_place_to_write_each_start_compiles_anew(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert CANNOT_KEEP in one_step(XDG_CACHE_HOME="", HOME=str(file / "home"))
    assert files(tmp_path) == {str(file): (file.stat().st_mtime_ns, 0)}


@pytest.mark.slow
def test_an_interrupted_compile_is_no_cache(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ONE_STEP], env=environment(XDG_CACHE_HOME=str(tmp_path)), stderr=subprocess.DEVNULL
    )
    deadline = monotonic() + 60
    while not list(tmp_path.rglob("kernels/*/")) and monotonic() < deadline:
        sleep(0.05)
    process.kill()
    process.wait()
    assert list(tmp_path.rglob(cache.SEAL)) == []
    assert COMPILING in one_step(XDG_CACHE_HOME=str(tmp_path))
    assert len(list(tmp_path.rglob(cache.SEAL))) == 1


def test_only_a_folder_that_is_as_it_was_sealed_is_used(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(b"1234")
    assert not cache.is_sealed(tmp_path)
    cache.seal(tmp_path)
    assert cache.is_sealed(tmp_path)
    (tmp_path / "code").write_bytes(b"1235")
    assert not cache.is_sealed(tmp_path)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an environment ships: sealed code under its prefix; and an empty cache of the user's beside it."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    folder = tmp_path / "environment" / cache.SHIPPED / cache.kernel_cache_directory().name
    (folder / "place").mkdir(parents=True)
    (folder / "place" / "code").write_bytes(b"1234")
    cache.seal(folder)
    return folder


def test_what_an_environment_ships_is_not_compiled_again(shipped: Path) -> None:
    folder = cache.kernel_cache_directory()
    assert cache.copy_shipped(folder)
    assert cache.is_sealed(folder)
    assert (folder / "place" / "code").read_bytes() == b"1234"


def test_damaged_code_that_was_shipped_is_not_used(shipped: Path) -> None:
    (shipped / "place" / "code").write_bytes(b"12")
    assert not cache.copy_shipped(cache.kernel_cache_directory())


@pytest.mark.parametrize("what", ["get_host_cpu_name", "get_host_cpu_features"])
def test_code_for_another_cpu_is_not_used(what: str, shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, what, lambda: FeatureMap(another=True) if "features" in what else "another")
    assert not cache.copy_shipped(cache.kernel_cache_directory())


def test_old_versions_are_forgotten(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / str(number)).mkdir()
        os.utime(tmp_path / str(number), (number, number))
    cache.forget_old_versions(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"3", "4", "5", "6"}


def test_no_home_at_all_is_no_place_to_write(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A container's user may have no entry in passwd and no HOME."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    compile_apart()
    assert CANNOT_KEEP in caplog.text


def test_any_change_to_what_is_compiled_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts are compiled in: a stale folder would unpack new matrices in the old way."""
    before = cache.kernel_digest()
    read = Path.read_bytes
    layouts = Path(decodepool_sizing.layouts.__file__)
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path == layouts else b""))
    assert cache.kernel_digest() != before


@pytest.mark.parametrize("package", ["numba", "llvmlite"])
def test_another_compiler_has_other_kernels(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.kernel_digest()
    monkeypatch.setattr(cache, "version", lambda name: "0.0.1" if name == package else version(name))
    assert cache.kernel_digest() != before
