from __future__ import annotations

from time import perf_counter

import gguf
import pytest
from decodepool_sizing.header import read_header
from decodepool_sizing.tensor_types import TensorType

from tests.sizing.gguf_bytes import F64, I64, U8, U64, BytesReader, Tensor, Typed, tensors, tiny
from tests.sizing.gguf_bytes import gguf as file_of


def test_a_sound_file_is_read_whole() -> None:
    header = read_header(BytesReader(tiny()))
    assert header.version == 3
    assert header.architecture == "llama"
    assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in tensors()]
    assert header.by_name["blk.1.ffn_down.weight"].dims == (96, 64)
    assert header.by_name["token_embd.weight"].offset == header.data_offset
    assert header.tensors[-1].offset + header.tensors[-1].size_bytes == header.file_bytes


def test_version_2_has_the_same_layout() -> None:
    assert read_header(BytesReader(tiny(version=2))).version == 2


def test_every_kind_of_value_comes_back() -> None:
    values = {
        "a.u8": Typed(U8, 200),
        "a.i64": Typed(I64, -5),
        "a.u64": Typed(U64, 2**63),
        "a.f64": Typed(F64, 0.1),
        "a.bool": True,
        "a.text": "naïve \U0001f600",
        "a.ints": [1, 2, 3],
        "a.bools": [True, False],
        "a.texts": ["x", "", "y"],
        "a.nested": [[1, 2], [3]],
        "a.empty": [],
    }
    read = read_header(BytesReader(file_of(values))).metadata
    assert read["a.u8"] == 200
    assert read["a.i64"] == -5
    assert read["a.u64"] == 2**63
    assert read["a.f64"] == 0.1
    assert read["a.bool"] is True
    assert read["a.text"] == "naïve \U0001f600"
    assert read["a.ints"] == (1, 2, 3)
    assert read["a.bools"] == (True, False)
    assert read["a.texts"] == ("x", "", "y")
    assert read["a.nested"] == ((1, 2), (3,))
    assert read["a.empty"] == ()


def test_alignment_moves_the_data() -> None:
    file = file_of({"general.alignment": 64}, [Tensor("x", (8,))]) + bytes(64)
    header = read_header(BytesReader(file))
    assert header.data_offset % 64 == 0
    assert header.tensors[0].offset == header.data_offset


def test_a_file_without_tensors_is_a_header_all_the_same() -> None:
    assert read_header(BytesReader(file_of({"a": 1}))).tensors == ()


def test_a_vocabulary_is_read_in_a_moment() -> None:
    words = [f"word{i:07d}" for i in range(250_000)]
    merges = [f"wo rd{i:07d}" for i in range(250_000)]
    file = file_of({"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": merges})
    reader = BytesReader(file)
    begin = perf_counter()
    header = read_header(reader)
    assert perf_counter() - begin < 3.0  # 0.15 s on the machine this was written on
    assert header.metadata["tokenizer.ggml.tokens"] == tuple(words)
    assert header.metadata["tokenizer.ggml.merges"] == tuple(merges)
    assert reader.calls < 12


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64])
def test_where_chunks_end_does_not_matter(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_header(BytesReader(tiny()))
    monkeypatch.setattr("decodepool_sizing.cursor.FIRST_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr("decodepool_sizing.cursor.LARGEST_CHUNK_BYTES", chunk_bytes)
    assert read_header(BytesReader(tiny())) == whole


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    theirs = {kind.name: (int(kind), *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {kind.name: (int(kind), kind.block_elements, kind.block_bytes) for kind in TensorType} == theirs
