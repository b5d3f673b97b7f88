"""GGUF files as bytes, sound or broken in one place: written here field by field, so that any lie can be told."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I32: "<i", U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", F64: "<d"}
ALIGNMENT = 32
F32_TENSOR = 0


class BytesReader:
    """A reader over bytes that counts what is asked of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.calls = 0

    @property
    def file_bytes(self) -> int:
        return len(self.data)

    def __call__(self, offset: int, length: int) -> bytes:
        self.calls += 1
        return self.data[offset : offset + length]


@dataclass(frozen=True)
class Typed:
    """A metadata value of an explicit type."""

    kind: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    """A table entry. What it claims (`claim_*`) may differ from what is written for it."""

    name: str
    dims: tuple[int, ...]
    kind: int = F32_TENSOR
    data: bytes | None = None
    claim_dimensions: int | None = None
    claim_offset: int | None = None


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> Typed:
    match value:
        case Typed():
            return value
        case bool():
            return Typed(BOOL, value)
        case int():
            return Typed(U32 if value >= 0 else I32, value)
        case float():
            return Typed(F32, value)
        case str() | bytes():
            return Typed(STRING, value)
        case list():
            return Typed(ARRAY, value)
    raise TypeError(value)


def encoded(item: Typed) -> bytes:
    if item.kind == STRING:
        return string(item.value)
    if item.kind == ARRAY:
        items = [typed(value) for value in item.value]
        kind = items[0].kind if items else U32
        return struct.pack("<IQ", kind, len(items)) + b"".join(encoded(item) for item in items)
    return struct.pack(FORMATS[item.kind], item.value)


def entry(key: str | bytes, value: Any) -> bytes:
    item = typed(value)
    return string(key) + struct.pack("<I", item.kind) + encoded(item)


def gguf(
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    metadata_count: int | None = None,
    tensor_count: int | None = None,
    extra_entries: Sequence[bytes] = (),
) -> bytes:
    count = len(metadata) + len(extra_entries) if metadata_count is None else metadata_count
    head = magic + struct.pack("<IQQ", version, len(tensors) if tensor_count is None else tensor_count, count)
    head += b"".join(entry(key, value) for key, value in metadata.items()) + b"".join(extra_entries)
    table, data = b"", b""
    for tensor in tensors:
        table += table_entry(tensor, len(data) if tensor.claim_offset is None else tensor.claim_offset)
        raw = tensor.data if tensor.data is not None else bytes(4 * prod(tensor.dims))
        data += raw + bytes(-len(raw) % ALIGNMENT)
    head += table
    return head + bytes(-len(head) % ALIGNMENT) + data


def table_entry(tensor: Tensor, offset: int) -> bytes:
    count = len(tensor.dims) if tensor.claim_dimensions is None else tensor.claim_dimensions
    dims = struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
    return string(tensor.name) + struct.pack("<I", count) + dims + struct.pack("<IQ", tensor.kind, offset)


EMBEDDING, FEED_FORWARD, HEADS, KV_HEADS, HEAD, VOCABULARY = 64, 96, 4, 2, 16, 40
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": 256,
    "llama.embedding_length": EMBEDDING,
    "llama.block_count": 2,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCABULARY)],
}


def block(index: int) -> Iterable[Tensor]:
    queries, kept = HEADS * HEAD, KV_HEADS * HEAD
    for name, dims in {
        "attn_norm": (EMBEDDING,),
        "attn_q": (EMBEDDING, queries),
        "attn_k": (EMBEDDING, kept),
        "attn_v": (EMBEDDING, kept),
        "attn_output": (queries, EMBEDDING),
        "ffn_norm": (EMBEDDING,),
        "ffn_gate": (EMBEDDING, FEED_FORWARD),
        "ffn_up": (EMBEDDING, FEED_FORWARD),
        "ffn_down": (FEED_FORWARD, EMBEDDING),
    }.items():
        yield Tensor(f"blk.{index}.{name}.weight", dims)


def tensors() -> list[Tensor]:
    """A sound 2-layer llama."""
    ends = [
        Tensor("token_embd.weight", (EMBEDDING, VOCABULARY)),
        Tensor("output_norm.weight", (EMBEDDING,)),
        Tensor("output.weight", (EMBEDDING, VOCABULARY)),
    ]
    return [*ends, *block(0), *block(1)]


def tiny(metadata: Mapping[str, Any] | None = None, /, **changes: Any) -> bytes:
    """The sound model, changed: metadata by key, tensors (`edit`) by name and field; None takes one away."""
    merged = {key: value for key, value in {**METADATA, **(metadata or {})}.items() if value is not None}
    edits: dict[str, dict[str, Any] | None] = changes.pop("edit", {})
    edited = [replace(t, **(edits.get(t.name) or {})) for t in tensors() if edits.get(t.name, {}) is not None]
    return gguf(merged, [*edited, *changes.pop("added", ())], **changes)
