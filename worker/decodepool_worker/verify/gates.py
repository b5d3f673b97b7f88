"""The table of gates, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from decodepool_worker.engine.rows import Engine
from decodepool_worker.verify.lab import BrokenGate, Lab
from decodepool_worker.verify.long_gate import LONG_GATE, past_a_group
from decodepool_worker.verify.row_gates import chunks, chunks_beside_rows, company, whole_prompts
from decodepool_worker.verify.session_gates import (
    close_and_replay,
    forks,
    joining_leaving_failing,
    prefix_reuse,
    seeded_draws,
)
from decodepool_worker.verify.witness import Witness

WIDTHS = (2, 3, 4, 5, 8, 13, 16, 17, 31, 32, 48, 64)
CHUNKS = (1, 7, 64)


@dataclass(frozen=True, slots=True)
class Gate:
    """A situation, and what it is called."""

    name: str
    run: Callable[[Lab], None]


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate compared. `difference` names the first row and element that were not equal; None if all were."""

    name: str
    rows: int
    bytes: int
    difference: str | None

    @property
    def equal(self) -> bool:
        """Whether every byte was."""
        return self.difference is None


GATES: tuple[Gate, ...] = (
    *(Gate(f"steps of {rows} rows", partial(company, rows=rows)) for rows in WIDTHS),
    *(Gate(f"chunks of {size} token{'s' if size > 1 else ''}", partial(chunks, size=size)) for size in CHUNKS),
    Gate("whole prompts", whole_prompts),
    Gate("chunks beside decode rows", chunks_beside_rows),
    Gate("joining, leaving, failing", joining_leaving_failing),
    Gate("forks", forks),
    Gate("prefix reuse", prefix_reuse),
    Gate("closed and replayed", close_and_replay),
    Gate("seeded draws", seeded_draws),
)
"""Every gate that needs nothing but a lab."""


def run_gate(gate: Gate, lab: Lab) -> GateResult:
    """Run a gate in a lab. BrokenGate if it compared nothing: that would be no gate."""
    return _result(gate.name, lab.witness, partial(gate.run, lab))


def run_long_gate(engine: Engine) -> GateResult:
    """Run the gate of streams past 512 tokens on an engine of its own; `long_gate` says how large it must be."""
    witness = Witness(engine)
    return _result(LONG_GATE, witness, partial(past_a_group, witness))


def _result(name: str, witness: Witness, run: Callable[[], None]) -> GateResult:
    before = witness.tally
    run()
    compared = witness.tally.since(before)
    if not compared.rows:
        raise BrokenGate(f"{name}: nothing was compared")
    return GateResult(name, compared.rows, compared.bytes, witness.difference)


def run_gates(lab: Lab, gates: tuple[Gate, ...] = GATES) -> Iterator[GateResult]:
    """Compute the reference, then run the gates up to the first that is not equal."""
    lab.reference()
    for gate in gates:
        result = run_gate(gate, lab)
        yield result
        if not result.equal:
            return
