"""The bytes of weights: what the engine allocates for the tensors it loads."""

from __future__ import annotations

import re
from collections.abc import Iterable

from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.layouts import repacked_bytes
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.tensor_table import TensorInfo

_BLOCK = re.compile(r"blk\.(\d+)\.")


def loaded_tensors(shape: ModelShape, tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Return the tensors of the trunk: blocks that predict further tokens are never loaded."""
    return [tensor for tensor in tensors if _block(tensor.name) < shape.block_count]


def weight_bytes(shape: ModelShape, tensors: Iterable[TensorInfo], device: DeviceKind = "cpu") -> int:
    """Return the bytes of all loaded tensors as a device's engine keeps them."""
    return sum(repacked_bytes(t.type.name, t.dims, t.size_bytes, device) for t in loaded_tensors(shape, tensors))


def _block(name: str) -> int:
    match = _BLOCK.match(name)
    return int(match.group(1)) if match else 0
