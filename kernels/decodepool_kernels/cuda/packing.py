"""Matrices as the tensor cores want them: records of 16 outputs x 32 inputs, in the order of a warp's lanes.

Lane (g = lane / 4, t = lane mod 4) holds outputs g and g + 8 at k = 4t..4t+3 and 16+4t..16+4t+3:

    8 bits    16 bytes a lane: [half of k][output][4 codes]
    4 bits    8 bytes a lane: [output] a word in which nibbles p and p + 4 are neighbours in k
    16 bits   two runs of 16 bytes a lane, one a half of k: [pair of k][output][2 values]

Records lie [pair of tiles][group of up to 4 blocks][tile of two][block]: what a warp takes at once is one run of bytes.
After the codes come scales [part][g][2 outputs], then minima alike, as f16 or f32. K-quants have theirs as bytes in a
head before their group's records, with the f16 that they multiply. f32 matrices lie [tile of 16 outputs][input][16].
Short tiles are filled up with zeros, and a last tile without a pair gets one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from decodepool_sizing.layouts import BLOCK_INPUTS, GROUP_BLOCKS, TILE_OUTPUTS, QuantLayout
from numpy.typing import NDArray

from decodepool_kernels.scales import Factored, Scales, products_of

LANE_OUTPUTS = 8
RUNS = 4
"""Runs of 4 inputs in half a block."""
NO_SUMS, HALF_SUMS, GROUP_SUMS = range(3)
"""Sums that stand beside an activation's planes: none that is read; of each half of a block in f32; or in f16, hi and
lo, group by group, as the tensor cores take them.
"""
GROUP_SUM_BYTES = 32
"""Of a row's sums over one group: 8 halves of blocks, each an f32 or two f16."""
FACTOR_ZERO = np.uint8(128)
"""The byte that stands for the factor 0."""


@dataclass(frozen=True)
class ActivationKind:
    """How activations are kept: the planes that a value is split into, and which sums stand beside them."""

    planes: int
    sums: int

    def serves(self, wanted: ActivationKind) -> bool:
        """Return whether who wants that kind may take this one."""
        return self.planes == wanted.planes and wanted.sums in {NO_SUMS, self.sums}

    def defines(self) -> dict[str, int]:
        """Return the sources' defines."""
        return {"PLANES": self.planes, "SUMS": self.sums}


@dataclass(frozen=True)
class MatrixKind:
    """How a matrix is kept, as the kernels are compiled for it."""

    code_bits: int
    sub_block: int
    has_minimum: bool
    scale_bytes: int
    is_bfloat: bool = False

    @property
    def planes(self) -> int:
        """f16 hi + lo, or bf16 hi + mid + lo."""
        return 3 if self.is_bfloat else 2

    @property
    def activation(self) -> ActivationKind:
        """What its products take."""
        return ActivationKind(self.planes, self.sums)

    @property
    def parts(self) -> int:
        """Scales of an output in a block."""
        return BLOCK_INPUTS // self.sub_block

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        scales = 0 if self.is_factored else self.parts * TILE_OUTPUTS * self.scale_bytes
        return 64 * self.code_bits + scales * (1 + self.has_minimum)

    @property
    def is_factored(self) -> bool:
        """Whether scales are a byte each, in the head of their group, and an f16 that they multiply."""
        return self.scale_bytes == 1

    @property
    def has_group_chains(self) -> bool:
        """Whether a code times its factor is exact in f16, so that a group's blocks are one chain of the tensor cores:
        11 bits at most, as of all k-quants but Q6_K, whose 5 and 7 bits make 12.
        """
        return self.is_factored and (self.code_bits == 4 or self.sub_block == BLOCK_INPUTS)

    @property
    def sums(self) -> int:
        """Which sums of activations its minima multiply (NO_SUMS, HALF_SUMS, GROUP_SUMS)."""
        if not self.has_minimum:
            return NO_SUMS
        return GROUP_SUMS if self.has_group_chains else HALF_SUMS

    @property
    def head_bytes(self) -> int:
        """Bytes before a group's records."""
        bytes_of_output = GROUP_BLOCKS * self.parts + 2
        return TILE_OUTPUTS * bytes_of_output * (1 + self.has_minimum) if self.is_factored else 0

    @property
    def group_bytes(self) -> int:
        """Bytes of a tile's group of 4 blocks."""
        return self.head_bytes + GROUP_BLOCKS * self.record_bytes

    def held_bytes(self, inputs: int, rows: int) -> int:
        """Return the bytes of rows of activations in whole groups, and of their sums where there are minima."""
        groups = -(-inputs // (GROUP_BLOCKS * BLOCK_INPUTS))
        sums = GROUP_SUM_BYTES if self.has_minimum else 0
        return groups * rows * (2 * GROUP_BLOCKS * BLOCK_INPUTS * self.planes + sums)

    def tile_bytes(self, inputs: int) -> int:
        """Return the bytes of a tile of 16 outputs."""
        blocks = inputs // BLOCK_INPUTS
        return blocks * self.record_bytes + -(-blocks // GROUP_BLOCKS) * self.head_bytes

    def defines(self) -> dict[str, int]:
        """Return the sources' defines."""
        return {
            "CODE_BITS": self.code_bits,
            "SUB_BLOCK": self.sub_block,
            "HAS_MINIMUM": int(self.has_minimum),
            "SCALE_BYTES": self.scale_bytes,
            "BFLOAT": int(self.is_bfloat),
            "GROUP_CHAINS": int(self.has_group_chains),
            **self.activation.defines(),
        }


F16_KIND = MatrixKind(16, 32, has_minimum=False, scale_bytes=0)
BF16_KIND = MatrixKind(16, 32, has_minimum=False, scale_bytes=0, is_bfloat=True)


def quant_kind(layout: QuantLayout) -> MatrixKind:
    """Return the kind for a quantised layout."""
    scale_bytes = 1 if layout.is_factored else layout.scale_bytes
    return MatrixKind(layout.code_bits, layout.sub_block, layout.has_minimum, scale_bytes)


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A packed matrix in this machine's memory. `kind` None is f32; `zero` is the code that stands for 0."""

    kind: MatrixKind | None
    outputs: int
    inputs: int
    zero: int
    data: NDArray[np.uint8]

    @property
    def size_bytes(self) -> int:
        """Bytes it takes on the device."""
        return self.data.size

    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        """The bytes, in runs of whole tiles."""
        return (self.data,)

    def emptied(self, outputs: int) -> PackedMatrix:
        """Return a matrix of as many outputs, kept as this one is, whose plane is yet to be filled."""
        run = TILE_OUTPUTS if self.kind is None else 2 * TILE_OUTPUTS
        size = self.data.size // -(-self.outputs // run) * -(-outputs // run)
        return replace(self, outputs=outputs, data=np.empty(size, np.uint8))


def pack_quantised(
    layout: QuantLayout, codes: NDArray[np.uint8], scales: Scales, minima: Scales | None, zero: int
) -> PackedMatrix:
    """Pack a matrix given as codes `[outputs, inputs]` and scales (and minima) `[outputs, inputs / sub_block]`."""
    outputs, inputs = codes.shape
    kind = quant_kind(layout)
    planes = [plane for plane in (scales, minima) if plane is not None]
    words = _lane_words(_whole_tiles(codes))
    packed = words if kind.code_bits == 8 else _nibbles(words)
    tiles, blocks = packed.shape[:2]
    runs = [np.ascontiguousarray(packed).view(np.uint8).reshape(tiles, blocks, -1)]
    if not kind.is_factored:
        runs += [_lane_scales(_whole_tiles(products_of(plane)), kind) for plane in planes]
        return PackedMatrix(kind, outputs, inputs, zero, _in_pairs(np.concatenate(runs, axis=2)))
    heads = _heads([plane for plane in planes if isinstance(plane, Factored)], kind)
    return PackedMatrix(kind, outputs, inputs, zero, _in_pairs(runs[0], heads))


def pack_float(type_name: str, values: NDArray[Any]) -> PackedMatrix:
    """Pack weights `[outputs, inputs]`, each as the bits of its own type (u16 for F16 and BF16, f32)."""
    outputs, inputs = values.shape
    whole = _whole_tiles(values)
    if type_name == "F32":
        tiles = whole.reshape(-1, TILE_OUTPUTS, inputs).transpose(0, 2, 1)
        return PackedMatrix(None, outputs, inputs, 0, np.ascontiguousarray(tiles).view(np.uint8).reshape(-1))
    pairs = np.ascontiguousarray(whole).view(np.uint32)
    lanes = pairs.reshape(-1, 2, LANE_OUTPUTS, inputs // BLOCK_INPUTS, 2, RUNS, 2).transpose(0, 3, 4, 2, 5, 6, 1)
    kind = BF16_KIND if type_name == "BF16" else F16_KIND
    records = np.ascontiguousarray(lanes).view(np.uint8).reshape(*lanes.shape[:2], kind.record_bytes)
    return PackedMatrix(kind, outputs, inputs, 0, _in_pairs(records))


def _in_pairs(records: NDArray[np.uint8], heads: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Order records `[tile, block, bytes]` and heads `[tile, group, bytes]` as they lie, a flat run of bytes."""
    tiles, blocks, _ = records.shape
    groups = -(-blocks // GROUP_BLOCKS)
    heads = np.empty((tiles, groups, 0), np.uint8) if heads is None else heads
    records, heads = (_whole_pairs(part) for part in (records, heads))
    whole = blocks // GROUP_BLOCKS
    runs = [
        _runs_of_pairs(records[:, :, first * GROUP_BLOCKS : past * GROUP_BLOCKS], heads[:, :, first:past])
        for first, past in ((0, whole), (whole, groups))
        if first < past
    ]
    return np.concatenate(runs, axis=1).reshape(-1)


def _runs_of_pairs(records: NDArray[np.uint8], heads: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return groups alike, `[pair, tile of two, ...]`, as bytes [pair][group, tile of two, head and records]."""
    pairs, _, groups, _ = heads.shape
    held = records.reshape(pairs, 2, groups, records.shape[2] // groups * records.shape[3])
    return np.concatenate([heads, held], axis=3).transpose(0, 2, 1, 3).reshape(pairs, -1)


def _whole_pairs(parts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return tiles in pairs."""
    if len(parts) % 2:
        parts = np.concatenate([parts, np.zeros((1, *parts.shape[1:]), np.uint8)])
    return parts.reshape(len(parts) // 2, 2, *parts.shape[1:])


def _heads(planes: Sequence[Factored], kind: MatrixKind) -> NDArray[np.uint8]:
    """Return the head of each group of 4 blocks: factors [g][plane][output of two][block][part], each a byte more by
    128, then f16 [g][plane][output of two].
    """
    per_group = GROUP_BLOCKS * kind.parts
    factors, units = [], []
    for plane in planes:
        count = plane.factors.shape[1]
        groups = -(-count // per_group)
        padded = np.full((len(plane.factors), groups * per_group), FACTOR_ZERO, np.uint8)
        padded[:, :count] = plane.factors.view(np.uint8) ^ FACTOR_ZERO
        of_group = np.arange(groups) * per_group * plane.units.shape[1] // count
        factors.append(_lane_outputs(padded.reshape(-1, groups, per_group)))
        of_groups = np.ascontiguousarray(plane.units[:, of_group])
        units.append(_lane_outputs(of_groups.view(np.uint8).reshape(-1, groups, 2)))
    return np.concatenate([_by_lane(factors), _by_lane(units)], axis=2)


def _lane_outputs(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bytes `[outputs, group, bytes]` as [tile][group][g][output of two][bytes]."""
    whole = _whole_tiles(rows)
    return whole.reshape(-1, 2, LANE_OUTPUTS, *whole.shape[1:]).transpose(0, 3, 2, 1, 4)


def _by_lane(planes: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return planes of `_lane_outputs` beside each other, as bytes [tile][group][g, plane, output of two, ...]."""
    stacked = np.stack(planes, axis=3)
    return np.ascontiguousarray(stacked).reshape(*stacked.shape[:2], -1)


def _whole_tiles(rows: NDArray[Any]) -> NDArray[Any]:
    missing = -rows.shape[0] % TILE_OUTPUTS
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)]) if missing else rows


def _lane_words(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return words of 4 codes as [tile][block][g][t][half][output of two]."""
    words = np.ascontiguousarray(codes).view(np.uint32)
    shape = (-1, 2, LANE_OUTPUTS, codes.shape[1] // BLOCK_INPUTS, 2, RUNS)
    return words.reshape(shape).transpose(0, 3, 2, 5, 4, 1)


def _nibbles(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Join the halves of k of each output: codes 0, 1 of half h to nibbles 2h, 2h + 4, codes 2, 3 to 2h + 1, 2h + 5."""
    joined = np.zeros((*words.shape[:4], 2), np.uint32)
    for half in range(2):
        for code in range(4):
            nibble = 2 * half + code // 2 + 4 * (code % 2)
            joined |= ((words[..., half, :] >> np.uint32(8 * code)) & np.uint32(15)) << np.uint32(4 * nibble)
    return joined


def _lane_scales(plane: NDArray[Any], kind: MatrixKind) -> NDArray[np.uint8]:
    """Return scales or minima as bytes [tile][block][part, g, output of two]."""
    typed = plane.astype(np.float16 if kind.scale_bytes == 2 else np.float32, copy=False)
    blocks = plane.shape[1] // kind.parts
    ordered = typed.reshape(-1, 2, LANE_OUTPUTS, blocks, kind.parts).transpose(0, 3, 4, 2, 1)
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(ordered.shape[0], blocks, -1)
