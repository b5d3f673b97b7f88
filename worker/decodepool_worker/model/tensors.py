"""A model's tensors as handles for a graph, and what of its numbers every layer asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decodepool_kernels.graph import Matrix, Rotation, Vector
from decodepool_sizing.shape import ModelShape


@dataclass(frozen=True)
class ModelTensors:
    """A model to build a graph of: its shape, the dims of its tensors (fastest first), its rotation."""

    shape: ModelShape
    dims: Mapping[str, tuple[int, ...]]
    rotation: Rotation

    def matrix(self, name: str) -> Matrix:
        """Return the matrix `NAME.weight`."""
        inputs, outputs = self.dims[f"{name}.weight"]
        return Matrix(f"{name}.weight", inputs, outputs)

    def vector(self, name: str) -> Vector:
        """Return the vector `name`."""
        return Vector(name, self.dims[name][0])

    def bias(self, name: str) -> Vector | None:
        """Return the vector `NAME.bias`, None where the file has none."""
        return self.vector(f"{name}.bias") if f"{name}.bias" in self.dims else None
