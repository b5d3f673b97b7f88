"""Times the CUDA engine on this machine's GPU: Llama-3-8B's shape, random weights made on the device, greedy.

    python -m bench.gpu.h200 --out DIRECTORY [--type Q8_0]

Writes DIRECTORY/h200-TYPE.json: card, driver, versions, commit; bandwidth; tokens a second by sessions and context, as
the host sees them and as the device takes them; prefill; the phases of a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from decodepool_kernels.cuda import nvrtc
from decodepool_kernels.cuda.backend import CudaBackend
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.profile import phases, step_seconds

from bench.gpu.shapes import BLOCKS, HEAD_DIM, KV_HEADS, VOCABULARY, backend_of, random_weights

PAGE_TOKENS = 64
DECODES = (
    (1, 1024),
    (2, 1024),
    (4, 1024),
    (8, 1024),
    (16, 1024),
    (32, 1024),
    (64, 1024),
    (1, 8192),
    (16, 8192),
    (1, 32512),
    (4, 32512),
)
"""Sessions, and the tokens each of them holds."""
PREFILLS = (0, 768, 7936, 32256)
"""Positions at which 256 rows of one session are prefilled."""
PROFILED = ((1, 1024), (16, 1024), (64, 1024))
PREFILL_ROWS = 256
STEPS = 20
COPY_BYTES = 8 << 30


@dataclass(frozen=True)
class Run:
    """Rows of one session."""

    pages: range
    position: int
    tokens: list[int]
    slot: int | None


def decode_runs(sessions: int, context: int) -> list[Run]:
    each = context // PAGE_TOKENS + 2
    return [Run(range(i * each, (i + 1) * each), context - 1, [i * 7 % VOCABULARY], i) for i in range(sessions)]


def prefill_runs(position: int) -> list[Run]:
    return [Run(range(600), position, list(range(PREFILL_ROWS)), 0)]


def host_seconds(backend: CudaBackend, runs: list[Run]) -> float:
    """The time of a step as its caller sees it: the mean of STEPS."""
    backend.run(runs)
    begin = time.perf_counter()
    for _ in range(STEPS):
        backend.run(runs)
    return (time.perf_counter() - begin) / STEPS


def decode(
    gpu: Gpu, backend: CudaBackend, weight_bytes: int, sessions: int, context: int, bandwidth: float
) -> dict[str, float]:
    seconds = host_seconds(backend, decode_runs(sessions, context))
    on_device = step_seconds(gpu, backend, sessions)
    kv_bytes = sessions * context * BLOCKS * KV_HEADS * HEAD_DIM * 4
    floor = (weight_bytes + kv_bytes) / bandwidth
    return {
        "sessions": sessions,
        "context": context,
        "tokens_per_second": sessions / seconds,
        "device_tokens_per_second": sessions / on_device,
        "device_seconds": on_device,
        "fraction_of_floor": floor / on_device,
    }


def prefill(backend: CudaBackend, position: int) -> dict[str, float]:
    return {
        "position": position,
        "rows": PREFILL_ROWS,
        "tokens_per_second": PREFILL_ROWS / host_seconds(backend, prefill_runs(position)),
    }


def profile(gpu: Gpu, backend: CudaBackend, sessions: int, context: int) -> dict[str, object]:
    backend.run(decode_runs(sessions, context))
    return {
        "sessions": sessions,
        "context": context,
        "phases": [asdict(phase) for phase in phases(gpu, backend, sessions)],
    }


def copy_bandwidth(gpu: Gpu) -> float:
    """Bytes a second of a copy within the device, those read and those written."""
    source, target = (gpu.allocate(COPY_BYTES) for _ in range(2))
    return 2 * COPY_BYTES / min(gpu.timed(lambda: gpu.copy(target, source, COPY_BYTES)) for _ in range(5))


def commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--type", default="Q8_0", dest="weight_type")
    parser.add_argument("--commit", default=commit())
    options = parser.parse_args()
    gpu = Gpu()
    bandwidth = copy_bandwidth(gpu)
    placed = random_weights(gpu, options.weight_type)
    backend = backend_of(gpu, placed.weights, pages=2100, slots=64, table_width=600)
    found = {
        "card": gpu.name,
        "driver": gpu.driver_version,
        "nvrtc": nvrtc.version(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "commit": options.commit,
        "command": " ".join(["python -m bench.gpu.h200", *sys.argv[1:]]),
        "weight_type": options.weight_type,
        "weight_bytes_per_step": placed.step_bytes,
        "copy_bytes_per_second": bandwidth,
        "decode": [decode(gpu, backend, placed.step_bytes, *case, bandwidth) for case in DECODES],
        "prefill": [prefill(backend, position) for position in PREFILLS],
        "profiles": [profile(gpu, backend, *case) for case in PROFILED],
    }
    path = options.out / f"h200-{options.weight_type}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: found[key] for key in ("decode", "prefill")}, indent=None))
    backend.close()


if __name__ == "__main__":
    main()
