"""How fast a file's weights come to this machine's GPU: a file of random blocks, from the page cache.

    python -m bench.gpu.loading --out DIRECTORY [--type Q8_0] [--blocks 8]

Writes a file of Llama-3-8B's shape with so many blocks aside, loads it, and writes DIRECTORY/h200-loading.json. It
needs `gguf` beside what `bench.gpu.h200` needs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from decodepool_cli.provenance import provenance
from decodepool_kernels.cuda.device import Gpu
from decodepool_sizing.header import TensorInfo
from decodepool_sizing.host import usable_cores
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.open import read_model
from decodepool_worker.engine.open_cuda import loaded_on
from decodepool_worker.model.named_shapes import named_header
from decodepool_worker.weights.random_blocks import random_bytes

from bench.gpu.folders import made_folder

SHAPE = "llama-3-8b"
SAMPLE_OUTPUTS = 512


def write(path: Path, weights: str, blocks: int) -> None:
    """Write the file: each matrix repeats a sample of its type and width."""
    header = named_header(SHAPE, weights)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in header.metadata.items():
        if key.endswith("block_count"):
            writer.add_uint32(key, blocks)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
    samples: dict[tuple[int, int], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = {}
    for tensor in _kept(header.tensors, blocks):
        writer.add_tensor(tensor.name, _data(tensor, samples), raw_dtype=gguf.GGMLQuantizationType(int(tensor.type)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kept(tensors: tuple[TensorInfo, ...], blocks: int) -> Iterator[TensorInfo]:
    for tensor in tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < blocks:
            yield tensor


def _data(tensor: TensorInfo, samples: dict[tuple[int, int], Any]) -> Any:
    if len(tensor.dims) == 1:
        return np.ones(tensor.dims[0], np.float32)
    inputs, outputs = tensor.dims
    key = (int(tensor.type), inputs)
    if key not in samples:
        raw = random_bytes(tensor.type, inputs, SAMPLE_OUTPUTS, np.random.default_rng(inputs))
        samples[key] = np.frombuffer(raw, np.uint8).reshape(SAMPLE_OUTPUTS, -1)
    return np.resize(samples[key], (outputs, samples[key].shape[1]))


def load(path: Path) -> tuple[float, int]:
    """Load the file's weights; return the seconds, and the bytes of the file."""
    gpu = Gpu()
    with file_reader(path) as reader:
        model = read_model(reader)
        began = time.perf_counter()
        loaded_on(gpu, model, reader, threads=usable_cores())
        seconds = time.perf_counter() - began
    gpu.close()
    return seconds, sum(tensor.size_bytes for tensor in model.header.tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=made_folder, required=True)
    parser.add_argument("--type", action="append", dest="types")
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    rows = []
    for weights in options.types or ["Q8_0", "Q4_K_M"]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write(path, weights, options.blocks)
            load(path)  # brings the file into the page cache, and compiles
            seconds, size = load(path)
        rows.append(
            {
                "weights": weights,
                "bytes": size,
                "seconds": round(seconds, 3),
                "gb_per_second": round(size / seconds / 1e9, 2),
            }
        )
    gpu = Gpu()
    report = {**provenance({"gpu": gpu.name}), "model": f"{SHAPE}, {options.blocks} blocks", "loading": rows}
    print(json.dumps(rows))
    (options.out / "h200-loading.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
