"""The gates on this machine: those of any engine, then other ways to run it, then a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.host import usable_cores
from decodepool_sizing.kv import KVType
from decodepool_worker.engine.open import Wanted
from decodepool_worker.engine.rows import Engine
from decodepool_worker.verify.gates import Gate, GateResult, run_gate, run_gates, run_long_gate
from decodepool_worker.verify.lab import CONTEXT_TOKENS, SESSIONS, BrokenGate, Lab
from decodepool_worker.verify.long_gate import LONG_CONTEXT_TOKENS, LONG_SESSIONS
from decodepool_worker.verify.row_gates import chunks, company
from decodepool_worker.verify.witness import Memory

from decodepool_cli.engines import opened
from decodepool_cli.provenance import provenance


@dataclass
class Verification:
    """A file to be verified. The model's context must be at least LONG_CONTEXT_TOKENS. `gpu` is what it ran on."""

    file: Path
    kv_type: KVType
    threads: int
    device: DeviceKind = "cpu"
    gpu: Mapping[str, str | int] | None = None

    def results(self) -> Iterator[GateResult]:
        """Run the gates up to the first that is not equal. BrokenGate where one cannot be run."""
        for result in self._all():
            yield result
            if not result.equal:
                return

    def _all(self) -> Iterator[GateResult]:
        memory = Memory()
        with self._opened(self._wanted(CONTEXT_TOKENS, SESSIONS)) as engine:
            lab = Lab(engine, memory)
            yield from run_gates(lab)
        with self._opened(self._wanted(LONG_CONTEXT_TOKENS, LONG_SESSIONS)) as engine:
            yield run_long_gate(engine)
        for name, wanted in self._variants():
            with self._opened(wanted) as engine:
                yield run_gate(Gate(name, _row_gates), Lab(engine, memory))
        yield run_gate(Gate("fresh process", self._fresh_process), lab)

    def _variants(self) -> Iterator[tuple[str, Wanted]]:
        """Yield other ways to the same bits: other numbers of threads, or on a GPU other launches and free memory."""
        usual = self._wanted(CONTEXT_TOKENS, SESSIONS)
        if self.device == "cuda":
            yield "one operation a launch", replace(usual, fused=False)
            yield "launch by launch", replace(usual, graphs=False)
            yield "more memory taken", replace(usual, sessions=2 * SESSIONS)
            return
        for threads in sorted({1, self.threads + 1} - {self.threads}):
            yield f"{threads} thread{'s' if threads > 1 else ''}", replace(usual, threads=threads)

    def _wanted(self, context_tokens: int, sessions: int) -> Wanted:
        return Wanted(context_tokens, sessions, self.kv_type, threads=self.threads, device=self.device)

    @contextmanager
    def _opened(self, wanted: Wanted) -> Iterator[Engine]:
        with opened(self.file, wanted) as loaded:
            self.gpu = loaded.gpu.described() if loaded.gpu is not None else None
            yield loaded.engine

    def origin(self) -> dict[str, Any]:
        """Return what was verified, and where."""
        return {**provenance(self.gpu), "model": self.file.name, "device": self.device, "kv_type": self.kv_type.value}

    def _fresh_process(self, lab: Lab) -> None:
        """Have `decodepool logits` compute a stream elsewhere, and compare every row of its file."""
        tokens = lab.streams[0]
        with TemporaryDirectory() as folder:
            out = Path(folder) / "logits.npy"
            kept = ["--kv-type", self.kv_type.value, "--device", self.device]
            options = ["--tokens", ",".join(map(str, tokens)), *kept, "--out", str(out)]
            command = [sys.executable, "-m", "decodepool_cli", "logits", str(self.file), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
            if done.returncode:
                raise BrokenGate(f"fresh process: {done.stderr.strip()}")
            for row, values in enumerate(np.load(out)):
                lab.witness.compare(tokens[: row + 1], values, f"row {row}")


def verification(file: Path, kv_type: KVType, threads: int | None, device: DeviceKind = "cpu") -> Verification:
    """Return the verification of a file with its keys and values kept in a type; all cores if `threads` is None."""
    return Verification(file, kv_type, threads or usable_cores(), device)


def _row_gates(lab: Lab) -> None:
    for gate in (partial(company, rows=5), partial(chunks, size=7)):
        gate(lab)
