"""What `decodepool bench` measures, as its JSON has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodepool_sizing.host import usable_cores
from decodepool_sizing.kv import KVType, pages
from decodepool_worker.engine.open import Loaded, Wanted

from decodepool_cli.engines import opened
from decodepool_cli.measuring import ROOM_TOKENS, SAMPLED, Timing, copy_context, time_decode, time_prefill
from decodepool_cli.provenance import provenance


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: steps of each of `widths`, of sessions that hold `context` tokens."""

    file: Path
    device: str
    kv_type: KVType
    threads: int | None
    widths: list[int]
    context: int


def measure(subject: Subject) -> dict[str, Any]:
    """Load the model with room for the widest step, and measure."""
    wanted = Wanted(subject.context + ROOM_TOKENS, max(subject.widths), subject.kv_type, threads=subject.threads)
    with opened(subject.file, wanted) as loaded:
        return {
            **provenance(),
            "model": subject.file.name,
            "device": subject.device,
            "threads": subject.threads or usable_cores(),
            "memory": _memory(loaded),
            **_times(subject, loaded),
        }


def _times(subject: Subject, loaded: Loaded) -> dict[str, Any]:
    """Time the prompt, then steps. Sessions hold copies of one prompt, each its own."""
    engine, tables = loaded.engine, _tables(loaded, max(subject.widths))
    prefill = time_prefill(engine, tables[0], _prompt(subject.context, engine.vocabulary_size))
    for table in tables[1:]:
        copy_context(engine, tables[0], table, subject.context)
    return {
        "decode": [_decode_row(subject, n, time_decode(engine, tables[:n], subject.context)) for n in subject.widths],
        "sampled": [
            {
                **_decode_row(subject, n, time_decode(engine, tables[:n], subject.context, SAMPLED)),
                "temperature": SAMPLED.temperature,
                "top_p": SAMPLED.top_p,
            }
            for n in subject.widths
        ],
        "prefill": [_prefill_row(subject, prefill)],
    }


def _tables(loaded: Loaded, count: int) -> list[list[int]]:
    each = pages(loaded.plan.context_tokens)
    return [list(range(i * each, (i + 1) * each)) for i in range(count)]


def _prompt(length: int, vocabulary_size: int) -> list[int]:
    return [(i * 7919 + 17) % vocabulary_size for i in range(length)]


def _memory(loaded: Loaded) -> dict[str, Any]:
    """Return resident memory with everything loaded and reserved, beside the plan's."""
    planned, measured = loaded.planned(), loaded.measured()
    return {
        "planned_bytes": planned["resident_bytes"],
        "measured_bytes": measured["resident_bytes"],
        "planned": planned,
        "measured": measured,
    }


def _decode_row(subject: Subject, sessions: int, timing: Timing) -> dict[str, Any]:
    return {
        "sessions": sessions,
        "context": subject.context,
        "kv_type": subject.kv_type.value,
        "step_ms": round(timing.median * 1e3, 3),
        "step_ms_min": round(timing.fastest * 1e3, 3),
        "step_ms_max": round(timing.slowest * 1e3, 3),
        "steps": len(timing.seconds),
        "tokens_per_second": round(sessions / timing.median, 2),
    }


def _prefill_row(subject: Subject, timing: Timing) -> dict[str, Any]:
    return {
        "context": subject.context,
        "kv_type": subject.kv_type.value,
        "seconds": round(timing.median, 4),
        "seconds_min": round(timing.fastest, 4),
        "seconds_max": round(timing.slowest, 4),
        "runs": len(timing.seconds),
        "tokens_per_second": round(subject.context / timing.median, 2),
    }
