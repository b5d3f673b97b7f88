"""Every kernel compiles for every architecture, without a GPU."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import compile as compiling  # noqa: E402 - after the question whether it can be imported
from decodepool_kernels.cuda import image_cache  # noqa: E402
from decodepool_kernels.cuda.errors import CannotCompile  # noqa: E402
from decodepool_kernels.cuda.packing import MatrixKind  # noqa: E402
from decodepool_kernels.cuda.products import warpgroup_cut  # noqa: E402
from decodepool_kernels.cuda.registry import KERNELS, KINDS, SWITCHES, Defines  # noqa: E402

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100")
FOR_EVERY_TARGET = [
    (name, target) for name, kernel in KERNELS.items() for target in ARCHITECTURES if kernel.only in (None, target)
]

MOST_VARIANTS = 8
CANNOT_KEEP = "compiled kernels cannot be kept"
H200_SMS, H200_SHARED_BYTES = 132, 228_352


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return image_cache.cache_directory()


def test_every_source_has_a_row() -> None:
    assert {kernel.source for kernel in KERNELS.values()} == {path.name for path in compiling.SOURCES.glob("*.cu")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), FOR_EVERY_TARGET)
@pytest.mark.usefixtures("cache")
def test_a_kernel_compiles(name: str, target: str) -> None:
    for defines in KERNELS[name].each_value():
        assert compiling.image(KERNELS[name].source, defines, target)[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.usefixtures("cache")
def test_variants_compile(name: str) -> None:
    """A spread of them: all are hundreds, and those that a model needs are compiled and compared on GPUs."""
    variants = list(KERNELS[name].every_variant())
    for defines in variants[:: -(-len(variants) // MOST_VARIANTS)]:
        compiling.image(KERNELS[name].source, defines, "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if "WINDOW" in kernel.variants])
@pytest.mark.usefixtures("cache")
def test_every_program_of_attention_compiles_with_all_its_switches(name: str) -> None:
    for defines in KERNELS[name].each_value():
        switched = {key: 1 if key in SWITCHES else value for key, value in defines.items()}
        compiling.image(KERNELS[name].source, switched, "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [137, 4096, 28672])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_steps_of_the_tensor_cores_are_not_serialised(kind: MatrixKind, outputs: int) -> None:
    """Where registers run out, ptxas has each step wait for the one ahead: right, three times as long, and said in its
    log alone.
    """
    for rows in (24, 32, 48, 64, 128):
        cut = warpgroup_cut(kind, [outputs], rows, H200_SMS, H200_SHARED_BYTES)
        assert cut is not None
        assert "serialized" not in log_of("matmul_warpgroup.cu", {**kind.defines(), **cut.defines(), "BESIDE": 0}), rows


def log_of(source: str, defines: Defines) -> str:
    """Return what NVRTC and ptxas say of a kernel for sm_90a that compiles."""
    names, texts = [name.encode() for name in compiling.headers()], list(compiling.headers().values())
    text = (compiling.SOURCES / source).read_bytes()
    _, program = nvrtc.nvrtcCreateProgram(text, source.encode(), len(names), texts, names)
    options = ["--gpu-architecture=sm_90a", "--ptxas-options=-v", *compiling.OPTIONS]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    log: bytes = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, log)
    assert b"Used" in log
    return log.decode()


def images(cache: Path) -> list[Path]:
    """Every file of the cache."""
    return [path for path in cache.rglob("*") if path.is_file()]


def test_an_image_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiling.image("add.cu", {}, "sm_90")
    assert len(images(cache)) == 1
    monkeypatch.setattr("decodepool_kernels.cuda.nvrtc.compiled", None)
    assert compiling.image("add.cu", {}, "sm_90") == first


def test_other_defines_are_another_image(cache: Path) -> None:
    for planes in (2, 3):
        compiling.image("quantise.cu", {"PLANES": planes, "SUMS": 0, "ITEMS": 1, "CORES": 0}, "sm_90")
    assert len(images(cache)) == 2


@pytest.mark.parametrize(
    "damage",
    [lambda whole: b"", lambda whole: whole[:100], lambda whole: whole[:-1] + b"?"],
    ids=["empty", "cut off", "a byte changed"],
)
def test_a_damaged_image_is_compiled_anew_and_kept(cache: Path, damage: Callable[[bytes], bytes]) -> None:
    first = compiling.image("add.cu", {}, "sm_90")
    (path,) = images(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert compiling.image("add.cu", {}, "sm_90") == first
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_only_compiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert compiling.image("add.cu", {}, "sm_90")[:4] == b"\x7fELF"
    assert caplog.text.count(CANNOT_KEEP) == 1


def test_a_user_without_a_home_only_compiles_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's user may have no entry in passwd and no HOME."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory, says this test.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert compiling.image("add.cu", {}, "sm_90")[:4] == b"\x7fELF"
    assert f"{CANNOT_KEEP}, so each start compiles" in caplog.text


def test_a_full_disk_is_left_as_it_was(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "replace", full)
    for planes in (2, 3):
        compiling.image("quantise.cu", {"PLANES": planes, "SUMS": 0, "ITEMS": 1, "CORES": 0}, "sm_90")
    assert images(cache) == []
    assert caplog.text.count(f"{CANNOT_KEEP}, so each start compiles") == 1


def test_images_of_the_latest_sources_are_kept(cache: Path) -> None:
    for number in range(7):
        (cache / str(number)).mkdir(parents=True)
        os.utime(cache / str(number), (number, number))
    (cache / "6" / "name.image").touch()
    image_cache.keep("new", "name.image", b"1234")
    assert {path.name for path in cache.iterdir()} == {"4", "5", "6", "new"}
    assert image_cache.kept("new", "name.image") == b"1234"


def test_a_gpu_newer_than_the_compiler_gets_ptx_for_the_newest_it_knows() -> None:
    target = compiling.target_of(990)
    assert target.startswith("compute_")
    assert compiling.image("add.cu", {}, target).startswith(b"//")


def test_a_gpu_older_than_the_kernels_is_refused_in_one_line() -> None:
    with pytest.raises(CannotCompile, match=r"7\.5 is older than 8\.0"):
        compiling.target_of(75)
