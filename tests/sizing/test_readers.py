from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from errno import EACCES
from pathlib import Path

import pytest
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import read_header
from decodepool_sizing.host import available_memory_bytes
from decodepool_sizing.readers import file_reader, is_url, model_reader

from tests.sizing.gguf_bytes import tiny


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny())
    with model_reader(path) as reader:
        assert reader.file_bytes == len(tiny())
        assert reader(10, 20) == tiny()[10:30]
        assert reader(len(tiny()) - 3, 100) == tiny()[-3:]
        assert read_header(reader).architecture == "llama"


def inside_a_file(folder: Path) -> Path:
    (folder / "file").write_bytes(tiny())
    return folder / "file" / "x"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


NOT_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "none.gguf", "no such file or directory"),
    "a directory": (lambda folder: folder, "this is a directory, not a model file"),
    "a pipe": (pipe, "this is a device or a pipe, not a model file"),
    "a device": (lambda _: Path("/dev/zero"), "this is a device or a pipe, not a model file"),
    "a name with NUL": (lambda folder: folder / "a\0b", "embedded null byte"),
    "a path through a file": (inside_a_file, "not a directory"),
}


@pytest.mark.parametrize("name", NOT_FILES)
def test_what_is_no_file_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    make, text = NOT_FILES[name]
    with pytest.raises(BadModelFile, match=text), file_reader(make(tmp_path)):
        pass


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(EACCES, "Permission denied")

    (tmp_path / "secret.gguf").write_bytes(tiny())
    monkeypatch.setattr(os, "open", forbidden)  # root, who runs tests in containers, may open everything
    with pytest.raises(BadModelFile, match="permission denied"), file_reader(tmp_path / "secret.gguf"):
        pass


def test_urls_are_told_from_paths() -> None:
    assert is_url("https://host/x.gguf")
    assert is_url("http://host/x.gguf")
    assert not is_url("./http/x.gguf")
    assert not is_url(Path("/models/x.gguf"))


def test_this_machine_has_memory() -> None:
    assert 0 < available_memory_bytes() < 1 << 50


def test_sizing_imports_no_arrays() -> None:
    modules = "header, shape, capacity, manifest, support, gpus, readers, loaded_tensors, host"
    code = f"import sys; from decodepool_sizing import {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "numba", "aiohttp", "typer", "gguf", "torch"} & set(loaded)
    assert "decodepool_sizing.capacity" in loaded
