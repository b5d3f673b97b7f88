"""The tensor table of a header: names, dims, types, places; checked as a whole before anybody uses a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from decodepool_sizing import limits
from decodepool_sizing.cursor import Cursor
from decodepool_sizing.errors import BadModelFile, shown
from decodepool_sizing.tensor_types import TensorType

_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8
"""The smallest entry: a name of one letter, one dimension."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `dims` fastest first (a matrix is `[inputs, outputs]`); `offset` is absolute."""

    name: str
    dims: tuple[int, ...]
    type: TensorType
    offset: int
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return prod(self.dims)


def read_tensor_table(
    cursor: Cursor, count: int, alignment: int, file_bytes: int
) -> tuple[tuple[TensorInfo, ...], int]:
    """Read `count` entries; return them, in the file's order, and the offset of the data. BadModelFile names the
    tensor at fault.
    """
    if count > limits.TENSORS or count * _ENTRY_BYTES > cursor.remaining_bytes:
        raise BadModelFile(f"tensor count: {count} tensors, more than the file can hold or than {limits.TENSORS}")
    entries = [_read_entry(cursor, index) for index in range(count)]
    data_offset = -(-cursor.offset // alignment) * alignment
    tensors = tuple(_placed(entry, data_offset, alignment) for entry in entries)
    _check_names(tensors)
    _check_places(tensors, file_bytes)
    return tensors, data_offset


def _read_entry(cursor: Cursor, index: int) -> TensorInfo:
    name = cursor.string(f"name of tensor {index}", limits.TENSOR_NAME_BYTES)
    if not name or not name.isprintable():
        raise BadModelFile(f"name of tensor {index}: '{shown(name)}' is empty or has unprintable characters")
    what = f"tensor {shown(name)}"
    dimensions = cursor.u32(what)
    if not 1 <= dimensions <= limits.DIMENSIONS:
        raise BadModelFile(f"{what}: {dimensions} dimensions, not 1 to {limits.DIMENSIONS}")
    dims = tuple(cursor.u64(what) for _ in range(dimensions))
    kind = _tensor_type(cursor.u32(what), what)
    return TensorInfo(name, dims, kind, cursor.u64(what), _size_bytes(dims, kind, what))


def _tensor_type(number: int, what: str) -> TensorType:
    try:
        return TensorType(number)
    except ValueError:
        raise BadModelFile(f"{what}: tensor type {number} does not exist") from None


def _size_bytes(dims: tuple[int, ...], kind: TensorType, what: str) -> int:
    if 0 in dims:
        raise BadModelFile(f"{what}: a dimension of zero in {list(dims)}")
    if dims[0] % kind.block_elements:
        raise BadModelFile(f"{what}: rows of {dims[0]} are not whole {kind.name} blocks of {kind.block_elements}")
    return prod(dims) // kind.block_elements * kind.block_bytes


def _placed(entry: TensorInfo, data_offset: int, alignment: int) -> TensorInfo:
    if entry.offset % alignment:
        raise BadModelFile(
            f"tensor {entry.name}: offset {entry.offset} is not a multiple of the alignment, {alignment}"
        )
    return TensorInfo(entry.name, entry.dims, entry.type, data_offset + entry.offset, entry.size_bytes)


def _check_names(tensors: tuple[TensorInfo, ...]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BadModelFile(f"tensor {tensor.name}: this name comes twice")
        seen.add(tensor.name)


def _check_places(tensors: tuple[TensorInfo, ...], file_bytes: int) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset + tensor.size_bytes > file_bytes:
            raise BadModelFile(_past_the_end(tensor, file_bytes))
        if tensor.offset < end:
            raise BadModelFile(
                f"tensor {tensor.name}: offset {tensor.offset} lies inside tensor {before}, which ends at {end}"
            )
        end, before = tensor.offset + tensor.size_bytes, tensor.name


def _past_the_end(tensor: TensorInfo, file_bytes: int) -> str:
    size = f"{list(tensor.dims)} of {tensor.type.name} is {tensor.size_bytes} bytes at offset {tensor.offset}"
    return (
        f"tensor {tensor.name}: {size}, to byte {tensor.offset + tensor.size_bytes}, but the file ends at {file_bytes}"
    )
