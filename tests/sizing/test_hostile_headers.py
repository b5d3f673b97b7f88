"""Files that lie: each is refused at once, by name, without memory for what it claims."""

from __future__ import annotations

import struct
import tracemalloc
from time import perf_counter

import pytest
from decodepool_sizing import limits
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import read_header

from tests.sizing.gguf_bytes import ARRAY, BOOL, STRING, U8, U64, BytesReader, Tensor, entry, gguf, string, tiny

SECONDS = 1.0
MEMORY_BYTES = 16 << 20
HUGE = 2**63


def claimed(key: str, kind: int, *numbers: int) -> bytes:
    """An entry whose value is only a claim."""
    layouts = {STRING: "<IQ", ARRAY: "<IIQ"}
    return string(key) + struct.pack(layouts[kind], kind, *numbers)


def nested(depth: int) -> bytes:
    return (
        string("x.deep") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0)
    )


EMBEDDING = "token_embd.weight"
NORM = "output_norm.weight"

FRAMING = {
    "empty": (b"", "it is empty"),
    "short": (b"GG", "not a GGUF file"),
    "web page": (b"<!DOCTYPE html><html><body>Not found</body></html>", "looks like a web page"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
    "other format": (b"\x80\x02}q\x00" * 9, "begins with 80 02"),
    "version 1": (tiny(version=1), "version: 1 is not read"),
    "version 4": (tiny(version=4), "version: 4 is not read"),
    "big endian": (tiny(version=0x03000000), "big-endian"),
    "cut in counts": (tiny()[:12], "tensor count: needs 8 bytes at offset 8, but the file ends at 12"),
    "cut in metadata": (tiny()[:300], r"(key \d+|llama\.\S+): needs \d+ bytes at offset \d+, but the file ends at 300"),
    "cut in table": (tiny()[:1800], "tensor "),
    "cut by a byte": (tiny()[:-1], r"tensor blk\.1\.ffn_down\.weight: .* but the file ends at"),
    "cut by half": (tiny()[: len(tiny()) // 2], "tensor blk"),
    "metadata count": (tiny(metadata_count=HUGE), "metadata count: 9223372036854775808"),
    "tensor count": (tiny(tensor_count=HUGE), "tensor count: 9223372036854775808"),
    "one tensor too many": (gguf({}, [Tensor("x", (8,))], tensor_count=2), "tensor count: 2|name of tensor 1"),
}

METADATA = {
    "string of 2^63": (claimed("x.s", STRING, HUGE - 1), "x.s: needs 9223372036854775807 bytes"),
    "string of 1 GiB": (claimed("x.s", STRING, 1 << 30), "x.s: needs 1073741824 bytes"),
    "array of 2^63": (claimed("x.a", ARRAY, U8, HUGE), "x.a: needs 9223372036854775808 bytes"),
    "array of 8 GiB": (claimed("x.a", ARRAY, U64, (1 << 30) - 1), "x.a: needs 8589934584 bytes"),
    "strings of no length": (claimed("x.a", ARRAY, STRING, HUGE // 8), "x.a: needs"),
    "array of unknown type": (claimed("x.a", ARRAY, 13, 1), "x.a: value type 13 does not exist"),
    "unknown type": (string("x.v") + struct.pack("<I", 99), "x.v: value type 99 does not exist"),
    "nested 20000 deep": (nested(20_000), f"x.deep: arrays nested more than {limits.ARRAY_DEPTH} deep"),
    "boolean of 2": (string("x.b") + struct.pack("<IB", BOOL, 2), "x.b: a boolean that is neither 0 nor 1"),
    "text not UTF-8": (string("x.s") + struct.pack("<I", STRING) + string(b"\xff"), "x.s: not UTF-8 at offset"),
    "texts not UTF-8": (
        string("x.a") + struct.pack("<IIQ", ARRAY, STRING, 2) + string("a") + string(b"\xc0\x80"),
        r"x\.a\[1\]: not UTF-8",
    ),
    "empty key": (entry("", 1), "is empty or has unprintable characters"),
    "key with a newline": (entry("a\nb", 1), r"'a\\x0ab' is empty or has unprintable"),
    "long key": (entry("k" * 300, 1), "a string of 300 bytes, more than the 256 allowed"),
    "key twice": (entry("llama.block_count", 3), "llama.block_count: this key comes twice"),
    "alignment of 3": (entry("general.alignment", 3), "general.alignment: 3 is not a power of two"),
    "alignment of 0": (entry("general.alignment", 0), "general.alignment: 0 is not a power of two"),
    "alignment in words": (entry("general.alignment", "32"), "general.alignment: '32' is not a power of two"),
}

TENSORS = {
    "no dimensions": ({"claim_dimensions": 0}, f"tensor {EMBEDDING}: 0 dimensions"),
    "five dimensions": ({"claim_dimensions": 5}, f"tensor {EMBEDDING}: 5 dimensions"),
    "2^32 - 1 dimensions": ({"claim_dimensions": 2**32 - 1}, f"tensor {EMBEDDING}: 4294967295 dimensions"),
    "a dimension of 0": ({"dims": (64, 0), "data": b""}, f"tensor {EMBEDDING}: a dimension of zero"),
    "a dimension of 2^63": ({"dims": (64, HUGE), "data": b""}, f"tensor {EMBEDDING}: .* but the file ends"),
    "a product that wraps": ({"dims": (64, 40 + 2**58), "data": b""}, f"tensor {EMBEDDING}: .* but the file ends"),
    "a product past 2^42": ({"dims": (64, 2**42 + 1), "data": b""}, f"tensor {EMBEDDING}: .* but the file ends"),
    "larger than the file": ({"dims": (64, 40_000), "data": b""}, f"tensor {EMBEDDING}: .* but the file ends"),
    "type 99": ({"kind": 99}, f"tensor {EMBEDDING}: tensor type 99 does not exist"),
    "type 4, taken away long ago": ({"kind": 4}, f"tensor {EMBEDDING}: tensor type 4 does not exist"),
    "type -1": ({"kind": 2**32 - 1}, f"tensor {EMBEDDING}: tensor type 4294967295 does not exist"),
    "rows of part of a block": ({"kind": 12}, f"tensor {EMBEDDING}: rows of 64 are not whole Q4_K blocks of 256"),
    "offset past the end": ({"claim_offset": 1 << 40}, f"tensor {EMBEDDING}: .* but the file ends"),
    "offset that wraps": ({"claim_offset": 2**64 - 32}, f"tensor {EMBEDDING}: .* but the file ends"),
    "offset unaligned": ({"claim_offset": 1}, f"tensor {EMBEDDING}: offset 1 is not a multiple of the alignment, 32"),
    "offset inside another": ({"claim_offset": 10_240}, r"tensor \S+: offset \d+ lies inside tensor \S+"),
    "a name twice": ({"name": NORM}, f"tensor {NORM}: this name comes twice"),
    "no name": ({"name": ""}, "name of tensor 0: '' is empty"),
    "a name with NUL": ({"name": "a\0b"}, r"name of tensor 0: 'a\\x00b' is empty or has unprintable"),
    "a name of 1 MiB": ({"name": "n" * (1 << 20)}, "name of tensor 0: a string of 1048576 bytes"),
}

FILES = {
    **FRAMING,
    **{name: (tiny(extra_entries=[raw]), text) for name, (raw, text) in METADATA.items()},
    **{name: (tiny(edit={EMBEDDING: change}), text) for name, (change, text) in TENSORS.items()},
}


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_refused_by_name(name: str) -> None:
    data, text = FILES[name]
    begin = perf_counter()
    with pytest.raises(BadModelFile, match=text) as caught:
        read_header(BytesReader(data))
    assert perf_counter() - begin < SECONDS
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [*METADATA, "metadata count", "tensor count"])
def test_a_claim_costs_no_memory(name: str) -> None:
    data, _ = FILES[name]
    tracemalloc.start()
    try:
        with pytest.raises(BadModelFile):
            read_header(BytesReader(data))
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def test_arrays_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARRAY_ITEMS", 100)
    read_header(BytesReader(gguf({"a": [1] * 50, "b": [1] * 50})))
    with pytest.raises(BadModelFile, match="b: with this array of 51 the file's arrays hold more than 100"):
        read_header(BytesReader(gguf({"a": [1] * 50, "b": [1] * 51})))


def test_a_header_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_BYTES", 1000)
    monkeypatch.setattr("decodepool_sizing.cursor.FIRST_CHUNK_BYTES", 64)
    with pytest.raises(BadModelFile, match="the header goes on past 1000 bytes"):
        read_header(BytesReader(gguf({f"key{i}": "x" * 40 for i in range(40)})))


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    class Shrinking(BytesReader):
        def __call__(self, offset: int, length: int) -> bytes:
            return self.data[offset : min(offset + length, 100)]

    with pytest.raises(BadModelFile, match="the file ended at offset 100 while it was being read"):
        read_header(Shrinking(tiny()))
