"""The gates on this machine: those of any engine, then other numbers of threads, then a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
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


@dataclass(frozen=True)
class Verification:
    """A file to be verified. The model's context must be at least LONG_CONTEXT_TOKENS."""

    file: Path
    kv_type: KVType
    threads: int

    def results(self) -> Iterator[GateResult]:
        """Run the gates up to the first that is not equal. BrokenGate where one cannot be run."""
        for result in self._all():
            yield result
            if not result.equal:
                return

    def _all(self) -> Iterator[GateResult]:
        memory = Memory()
        with self._lab(self.threads, memory) as lab:
            yield from run_gates(lab)
        with self._engine(LONG_CONTEXT_TOKENS, LONG_SESSIONS, self.threads) as engine:
            yield run_long_gate(engine)
        for threads in sorted({1, self.threads + 1} - {self.threads}):
            with self._lab(threads, memory) as other:
                name = f"{threads} thread{'s' if threads > 1 else ''}"
                yield run_gate(Gate(name, _row_gates), other)
        yield run_gate(Gate("fresh process", self._fresh_process), lab)

    @contextmanager
    def _lab(self, threads: int, memory: Memory) -> Iterator[Lab]:
        with self._engine(CONTEXT_TOKENS, SESSIONS, threads) as engine:
            yield Lab(engine, memory)

    @contextmanager
    def _engine(self, context_tokens: int, sessions: int, threads: int) -> Iterator[Engine]:
        with opened(self.file, Wanted(context_tokens, sessions, self.kv_type, threads=threads)) as loaded:
            yield loaded.engine

    def _fresh_process(self, lab: Lab) -> None:
        """Have `decodepool logits` compute a stream elsewhere, and compare every row of its file."""
        tokens = lab.streams[0]
        with TemporaryDirectory() as folder:
            out = Path(folder) / "logits.npy"
            options = ["--tokens", ",".join(map(str, tokens)), "--kv-type", self.kv_type.value, "--out", str(out)]
            command = [sys.executable, "-m", "decodepool_cli", "logits", str(self.file), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
            if done.returncode:
                raise BrokenGate(f"fresh process: {done.stderr.strip()}")
            for row, values in enumerate(np.load(out)):
                lab.witness.compare(tokens[: row + 1], values, f"row {row}")


def verification(file: Path, kv_type: KVType, threads: int | None) -> Verification:
    """Return the verification of a file with its keys and values kept in a type; all cores if `threads` is None."""
    return Verification(file, kv_type, threads or usable_cores())


def _row_gates(lab: Lab) -> None:
    for gate in (partial(company, rows=5), partial(chunks, size=7)):
        gate(lab)
