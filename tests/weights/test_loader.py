"""Loading whole files: what is allocated, how far it got, what names its contents, and what stops it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import Header, read_header
from decodepool_sizing.loaded_tensors import weight_bytes
from decodepool_sizing.readers import FileReader, file_reader
from decodepool_sizing.shape import read_shape
from decodepool_sizing.support import model_refusals
from decodepool_worker.weights.loader import LoadedWeights, load_weights

from tests.sizing.gguf_bytes import METADATA, Tensor, gguf, tensors, tiny


def random_tensors(seed: int = 0) -> list[Tensor]:
    random = np.random.default_rng(seed)
    return [
        Tensor(t.name, t.dims, data=random.standard_normal(int(np.prod(t.dims))).astype(np.float32).tobytes())
        for t in tensors()
    ]


def random_model(seed: int = 0, **metadata: Any) -> bytes:
    """The tiny llama with random weights."""
    return gguf({**METADATA, **metadata}, random_tensors(seed))


@contextmanager
def opened(folder: Path, data: bytes) -> Iterator[tuple[FileReader, Header]]:
    path = folder / "model.gguf"
    path.write_bytes(data)
    with file_reader(path) as reader:
        yield reader, read_header(reader)


def loaded(folder: Path, data: bytes, threads: int = 2) -> LoadedWeights:
    with opened(folder, data) as (reader, header):
        return load_weights(reader, header, read_shape(header), threads=threads)


def test_every_tensor_is_loaded_into_the_bytes_that_were_planned(tmp_path: Path) -> None:
    with opened(tmp_path, random_model()) as (reader, header):
        shape = read_shape(header)
        weights = load_weights(reader, header, shape, threads=2)
    assert {*weights.matrices, *weights.vectors} == set(header.by_name)
    assert {name for name, tensor in header.by_name.items() if len(tensor.dims) == 1} == set(weights.vectors)
    assert weights.size_bytes == weight_bytes(shape, header.tensors)


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_only_grows_and_ends_at_the_whole(tmp_path: Path, threads: int) -> None:
    seen: list[tuple[int, int]] = []
    with opened(tmp_path, random_model()) as (reader, header):
        load_weights(reader, header, read_shape(header), threads=threads, progress=lambda *p: seen.append(p))
    total = sum(tensor.size_bytes for tensor in header.tensors)
    assert seen == sorted(set(seen))
    assert len(seen) == len(header.tensors)
    assert seen[-1] == (total, total)


def test_the_digest_does_not_depend_on_threads_or_on_the_files_name(tmp_path: Path) -> None:
    first, second = loaded(tmp_path, random_model(), 1), loaded(tmp_path, random_model(), 5)
    assert first.digest == second.digest


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_down.weight", "output_norm.weight"])
@pytest.mark.parametrize("place", [0, -4], ids=["first byte", "last number"])
def test_the_digest_changes_with_any_byte_of_a_weight(tmp_path: Path, name: str, place: int) -> None:
    data = random_model()
    with opened(tmp_path, data) as (_, header):
        tensor = header.by_name[name]
    where = tensor.offset + place % tensor.size_bytes
    changed = data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]
    assert loaded(tmp_path, changed).digest != loaded(tmp_path, data).digest


@pytest.mark.parametrize(
    "change",
    [{"llama.rope.freq_base": 500.0}, {"llama.attention.layer_norm_rms_epsilon": 1e-6}, {"general.name": "other"}],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_changes_with_the_metadata(tmp_path: Path, change: dict[str, Any]) -> None:
    assert loaded(tmp_path, random_model(**change)).digest != loaded(tmp_path, random_model()).digest


@pytest.mark.parametrize("left", [0, 1, 1000], ids=lambda left: f"{left} bytes left of the last tensor")
def test_a_file_cut_while_it_loads_is_a_line_and_not_a_signal(tmp_path: Path, left: int) -> None:
    with opened(tmp_path, random_model()) as (reader, header):
        last = header.tensors[-1]
        os.truncate(tmp_path / "model.gguf", last.offset + left)
        with pytest.raises(BadModelFile) as caught:
            load_weights(reader, header, read_shape(header), threads=2)
    assert str(caught.value) == (
        f"tensor {last.name}: the file was cut while loading: {left} of {last.size_bytes} bytes"
    )


def test_a_tensor_is_read_whole_however_little_the_system_gives_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives at most 2 GiB less a page: embeddings of large models are more."""
    whole, pread = loaded(tmp_path, random_model()), os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, offset: pread(file, min(length, 1000), offset))
    assert loaded(tmp_path, random_model()).digest == whole.digest


def test_the_first_tensor_at_fault_is_named(tmp_path: Path) -> None:
    data = random_tensors()
    for index in (7, 4):
        broken = np.frombuffer(data[index].data or b"", np.float32).copy()
        broken[3] = np.nan
        data[index] = Tensor(data[index].name, data[index].dims, data=broken.tobytes())
    with pytest.raises(BadModelFile, match=rf"^tensor {data[4].name}: element 3 is NaN or infinite$"):
        loaded(tmp_path, gguf(METADATA, data))


WIDTHS = {
    "embedding of 48": ({"llama.embedding_length": 48, "llama.attention.key_length": 16}, "48 inputs"),
    "feed-forward of 40": ({"llama.feed_forward_length": 40}, "40 inputs"),
}


@pytest.mark.parametrize(("change", "text"), WIDTHS.values(), ids=list(WIDTHS))
def test_a_width_that_no_block_divides_is_refused_before_loading(
    tmp_path: Path, change: dict[str, int], text: str
) -> None:
    sizes = {64: change.get("llama.embedding_length", 64), 96: change.get("llama.feed_forward_length", 96)}
    resized = [Tensor(t.name, tuple(sizes.get(d, d) for d in t.dims)) for t in tensors()]
    with opened(tmp_path, gguf({**METADATA, **change}, resized)) as (_, header):
        _, reasons = model_refusals(header)
    assert any(text in reason and "not a multiple of 32" in reason for reason in reasons)


def test_a_head_that_no_lanes_divide_is_refused_before_loading(tmp_path: Path) -> None:
    with opened(tmp_path, tiny({"llama.attention.key_length": 8, "llama.attention.value_length": 8})) as (_, header):
        _, reasons = model_refusals(header)
    assert "heads of 8 dimensions, not a multiple of 16: the engine does not run this yet" in reasons
