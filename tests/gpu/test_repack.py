"""Matrices repacked on the GPU have the bytes that NumPy packs, in any slices, of every type and odd shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")

from decodepool_kernels.cuda import packing
from decodepool_kernels.cuda.device import PIECE_BYTES, Gpu, Region
from decodepool_kernels.cuda.formats import REPACKED
from decodepool_kernels.cuda.library import KernelLibrary
from decodepool_kernels.cuda.packing import PackedMatrix
from decodepool_kernels.cuda.repack import Repacking
from decodepool_kernels.scales import products_of
from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.readers import file_reader
from decodepool_sizing.tensor_types import TensorType
from decodepool_worker.engine.open import Wanted, open_model, read_model
from decodepool_worker.weights.formats import FORMATS
from decodepool_worker.weights.matrices import Packing, matrix_packed_by
from decodepool_worker.weights.random_blocks import random_bytes

from tests.tiny.models import Tiny, write

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SHAPES = ((256, 16), (768, 33), (512, 96), (1280, 130))
"""Inputs, and outputs that fill tiles or do not."""


def scrambled(kind: TensorType, inputs: int, outputs: int) -> bytes:
    """Random bytes throughout, scales too, so that every bit counts; the exponents of floats kept from NaN."""
    raw = np.frombuffer(random_bytes(kind, inputs, outputs, np.random.default_rng(inputs)), np.uint8).copy()
    if kind.name not in FORMATS:
        return raw.tobytes()
    noise = np.random.default_rng(7).integers(0, 256, raw.size, np.uint8).reshape(-1, kind.block_bytes)
    decoded, blocks = FORMATS[kind.name].decode(noise), raw.reshape(-1, kind.block_bytes)
    keep = np.isfinite(products_of(decoded.scales)).all(1)
    if decoded.minima is not None:
        keep &= np.isfinite(products_of(decoded.minima)).all(1)
    blocks[keep] = noise[keep]
    return blocks.tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", REPACKED, ids=lambda kind: kind.name)
def test_the_bytes_are_those_of_numpy(gpu: Gpu, kind: TensorType, shape: tuple[int, int]) -> None:
    inputs, outputs = shape
    raw = scrambled(kind, inputs, outputs)
    pack: Packing[PackedMatrix] = packing
    wanted = matrix_packed_by(pack, TensorInfo("m", shape, kind, 0, len(raw)), [raw])
    repacking = Repacking(gpu, KernelLibrary(gpu), Region(gpu, 2 * wanted.size_bytes + PIECE_BYTES), 2)
    row_bytes = len(raw) // outputs
    for step in (outputs, 32):
        filling = repacking.matrix("m", kind, outputs, inputs, 0)
        for begin in range(0, outputs, step):
            filling.add(raw[begin * row_bytes : (begin + step) * row_bytes])
        found = np.empty(filling.matrix.size_bytes, np.uint8)
        gpu.download(found, filling.matrix.address)
        gpu.synchronize()
        assert found.tobytes() == wanted.data.tobytes()
    assert repacking.finish() == []


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q6_K"])
def test_a_weight_that_is_not_finite_is_named_as_the_cpu_engine_names_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    write(Tiny(weight_type=kind, head_length=64), path)
    content = bytearray(path.read_bytes())
    with file_reader(path) as reader:
        tensor = read_model(reader).header.by_name["blk.1.ffn_up.weight"]
    scale_at = {"Q6_K": 208}.get(kind, 0)
    content[tensor.offset + scale_at : tensor.offset + scale_at + 2] = b"\xff\xff"
    path.write_bytes(content)
    told = []
    devices: tuple[DeviceKind, ...] = ("cpu", "cuda")
    for device in devices:
        with pytest.raises(BadModelFile, match=r"blk\.1\.ffn_up\.weight") as fault:
            open_model(path, Wanted(64, 1, device=device))
        told.append(str(fault.value))
    assert told[0] == told[1]
