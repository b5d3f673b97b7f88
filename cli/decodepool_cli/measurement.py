"""What `decodepool bench` measures, as its JSON has it.

It needs the engine and its device alone, neither the command line's packages nor the server's: a GPU that has only the
sources can be measured too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from decodepool_sizing.host import usable_cores
from decodepool_sizing.kv import PAGE_TOKENS, pages
from decodepool_worker.engine.open import Loaded, Wanted

from decodepool_cli.cases import Cases
from decodepool_cli.measuring import ROOM_TOKENS, SAMPLED, Timing, copy_context, run_one_step, time_decode, time_prefill
from decodepool_cli.provenance import provenance

Open = Callable[[Wanted], AbstractContextManager[Loaded]]
"""Opens the model with room for what is wanted, for the time of a `with`."""
Watch = Callable[[float, float], Mapping[str, float]]
"""Tells what else is known of the time between two readings of `perf_counter`, as columns of a row."""


def unwatched(_began: float, _ended: float) -> Mapping[str, float]:
    """Know nothing else."""
    return {}


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and how it is opened. `step_weight_bytes` are those of the file's weights that every step reads."""

    name: str
    open: Open
    wanted: Wanted
    step_weight_bytes: int


def measure(subject: Subject, cases: Cases, watch: Watch = unwatched) -> dict[str, Any]:
    """Load the model with room for the largest case, and measure."""
    sessions = -(-cases.page_count // pages(cases.longest))
    wanted = subject.wanted.with_room(cases.longest, max(sessions, 1), logits_rows=cases.widest)
    with subject.open(wanted) as loaded:
        memory = _memory(loaded)
        bandwidth = None if loaded.gpu is None else loaded.gpu.read_bandwidth()
        return {
            **provenance(None if loaded.gpu is None else loaded.gpu.described()),
            "model": subject.name,
            "device": wanted.device,
            "threads": wanted.threads or usable_cores(),
            **({} if bandwidth is None else {"read_bytes_per_second": round(bandwidth)}),
            "memory": memory,
            **Measuring(subject, cases, loaded, bandwidth, watch).all(),
        }


def joined(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a report with the rows of another, of the same model, added to its own."""
    lists = ("decode", "sampled", "prefill", "profiles")
    added = {name: [*first.get(name, []), *other.get(name, [])] for name in lists if first.get(name) or other.get(name)}
    return {**first, **added}


@dataclass(frozen=True, slots=True)
class Measuring:
    """A loaded model under the clock. Sessions hold copies of one prompt, each its own."""

    subject: Subject
    cases: Cases
    loaded: Loaded
    bandwidth: float | None
    watch: Watch

    def all(self) -> dict[str, Any]:
        """Time prompts, the longest last; then steps, the longest contexts first: what they overwrite is not needed by
        those after them. Phases come last, since they leave no session's numbers whole.
        """
        prefill = [self._prefill(length) for length in sorted(self.cases.prompts)]
        decodes = sorted(self.cases.decodes, reverse=True)
        timed = {case: self._decode(*case) for case in decodes}
        sampled = {case: self._sampled(*case) for case in decodes if case in self.cases.sampled}
        report: dict[str, Any] = {
            "decode": [timed[case] for case in self.cases.decodes],
            "sampled": [sampled[case] for case in self.cases.decodes if case in sampled],
            "prefill": prefill,
        }
        if self.cases.profiled:
            report["profiles"] = [self._profile(*case) for case in self.cases.profiled]
        return report

    def _tables(self, context: int, count: int) -> list[list[int]]:
        """Return the sessions' pages; those of the first begin with the prompt, of which the others get copies."""
        each = pages(context + ROOM_TOKENS)
        tables = [list(range(i * each, (i + 1) * each)) for i in range(count)]
        for table in tables[1:]:
            copy_context(self.loaded.engine, tables[0], table, context)
        return tables

    def _prefill(self, length: int) -> dict[str, Any]:
        engine = self.loaded.engine
        tokens = [(i * 7919 + 17) % engine.vocabulary_size for i in range(length)]
        table = list(range(pages(length)))
        return self._prefill_row(length, time_prefill(engine, table, tokens))

    def _decode(self, context: int, sessions: int) -> dict[str, Any]:
        timing = time_decode(self.loaded.engine, self._tables(context, sessions), context)
        row = self._decode_row(context, sessions, timing)
        gpu = self.loaded.gpu
        if gpu is None or self.bandwidth is None:
            return row
        on_device = gpu.step_seconds(sessions)
        floor = (self.subject.step_weight_bytes + self._kv_bytes(context, sessions)) / self.bandwidth
        return row | {
            "device_ms": round(on_device * 1e3, 3),
            "host_ms": round((timing.median - on_device) * 1e3, 3),
            "floor_fraction": round(floor / timing.median, 4),
        }

    def _sampled(self, context: int, sessions: int) -> dict[str, Any]:
        timing = time_decode(self.loaded.engine, self._tables(context, sessions), context, SAMPLED)
        drawn = {"temperature": SAMPLED.temperature, "top_p": SAMPLED.top_p}
        return self._decode_row(context, sessions, timing) | drawn

    def _profile(self, context: int, sessions: int) -> dict[str, Any]:
        """Return the phases of one step. Attention reads keys and values, products weights; the rest is small."""
        gpu, bandwidth = self.loaded.gpu, self.bandwidth
        assert gpu is not None
        assert bandwidth is not None
        run_one_step(self.loaded.engine, self._tables(context, sessions), context)
        found = []
        for phase in gpu.phases(sessions):
            read = self._kv_bytes(context, sessions) if phase.name == "attention" else phase.weight_bytes
            shown = {"name": phase.name, "launches": phase.launches, "ms": round(phase.seconds * 1e3, 4), "bytes": read}
            found.append(shown | {"read_fraction": round(read / bandwidth / phase.seconds, 4)})
        return {"sessions": sessions, "context": context, "kv_type": self._kv_type, "phases": found}

    def _kv_bytes(self, context: int, sessions: int) -> int:
        return sessions * context * self.loaded.plan.page_bytes // PAGE_TOKENS

    @property
    def _kv_type(self) -> str:
        return self.loaded.plan.kv_type.value

    def _decode_row(self, context: int, sessions: int, timing: Timing) -> dict[str, Any]:
        return {
            "sessions": sessions,
            "context": context,
            "kv_type": self._kv_type,
            "step_ms": round(timing.median * 1e3, 3),
            "step_ms_min": round(timing.fastest * 1e3, 3),
            "step_ms_max": round(timing.slowest * 1e3, 3),
            "steps": len(timing.seconds),
            "tokens_per_second": round(sessions / timing.median, 2),
            **self.watch(timing.began, timing.ended),
        }

    def _prefill_row(self, length: int, timing: Timing) -> dict[str, Any]:
        return {
            "context": length,
            "kv_type": self._kv_type,
            "seconds": round(timing.median, 4),
            "seconds_min": round(timing.fastest, 4),
            "seconds_max": round(timing.slowest, 4),
            "runs": len(timing.seconds),
            "tokens_per_second": round(length / timing.median, 2),
            **self.watch(timing.began, timing.ended),
        }


def _memory(loaded: Loaded) -> dict[str, Any]:
    """Return resident memory with everything loaded and reserved, beside the plan's."""
    planned, measured = loaded.planned(), loaded.measured()
    return {
        "planned_bytes": planned["resident_bytes"],
        "measured_bytes": measured["resident_bytes"],
        "planned": planned,
        "measured": measured,
    }
