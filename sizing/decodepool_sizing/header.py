"""Reading a GGUF header: metadata and tensor table, from bytes that nobody vouches for.

The layout is the GGUF specification's (versions 2 and 3, little endian). Nothing is allocated by a number that the
file claims before that number is held against `limits` and against the bytes that are left; the whole table is
checked before anybody sees a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from decodepool_sizing import limits
from decodepool_sizing.cursor import Cursor, Reader
from decodepool_sizing.errors import BadModelFile, shown
from decodepool_sizing.metadata import Value, read_metadata
from decodepool_sizing.tensor_table import TensorInfo, read_tensor_table

__all__ = ["Header", "Reader", "TensorInfo", "Value", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class Header:
    """What a model file says of itself. Offsets are absolute; every tensor lies inside the file, none overlaps
    another.
    """

    version: int
    alignment: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_bytes: int

    @cached_property
    def by_name(self) -> Mapping[str, TensorInfo]:
        """The tensors by name."""
        return MappingProxyType({tensor.name: tensor for tensor in self.tensors})

    @property
    def architecture(self) -> str:
        """`general.architecture`; BadModelFile where the file does not say."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str):
            raise BadModelFile("general.architecture: missing, or not a string")
        return value


def read_header(reader: Reader) -> Header:
    """Read and check a header. BadModelFile, one line, names the key, tensor or offset at fault."""
    cursor = Cursor(reader)
    version = _read_version(cursor)
    tensor_count = cursor.u64("tensor count")
    metadata = read_metadata(cursor, cursor.u64("metadata count"))
    alignment = _alignment(metadata)
    tensors, data_offset = read_tensor_table(cursor, tensor_count, alignment, reader.file_bytes)
    return Header(version, alignment, MappingProxyType(metadata), tensors, data_offset, reader.file_bytes)


def _read_version(cursor: Cursor) -> int:
    if not cursor.remaining_bytes:
        raise BadModelFile("not a GGUF file: it is empty")
    start = cursor.take(min(4, cursor.remaining_bytes), "magic")
    if start != MAGIC:
        raise BadModelFile(
            f"not a GGUF file: {_looks_like(start + cursor.take(min(60, cursor.remaining_bytes), 'magic'))}"
        )
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in VERSIONS:
        raise BadModelFile(f"version: {version} is {swapped} in big-endian order; only little-endian files are read")
    raise BadModelFile(f"version: {version} is not read, only 2 and 3")


def _looks_like(start: bytes) -> str:
    text = start.decode("latin-1").lstrip()
    if text.startswith("version https://git-lfs"):
        return "it is a Git LFS pointer, fetch the file it stands for"
    if text.startswith("<"):
        return f"it looks like a web page, it begins with {shown(text[:16])!r}"
    return f"it begins with {start[:4].hex(' ')}, not with 'GGUF'"


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    power_of_two = isinstance(value, int) and not isinstance(value, bool) and value >= 1 and value & (value - 1) == 0
    if not (isinstance(value, int) and power_of_two and value <= limits.ALIGNMENT_BYTES):
        raise BadModelFile(f"general.alignment: {value!r:.40} is not a power of two up to {limits.ALIGNMENT_BYTES}")
    return value
