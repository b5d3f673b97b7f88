"""`decodepool verify`: the exactness gates, on this machine and this file."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from decodepool_sizing.kv import KVType

from decodepool_cli.faults import Fault, bad_input
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import Device, KeptAs, ModelPath, Threads, runnable_model
from decodepool_cli.output import AsJson, columns, console, print_json

if TYPE_CHECKING:
    from decodepool_worker.verify.gates import GateResult
    from rich.table import Table


def verify(
    *,
    file: ModelPath,
    device: Device = "cpu",
    kv_type: KeptAs = KVType.F16,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Hold this machine and this file to the exactness gates."""
    interrupt_on_terminate()
    _, shape = runnable_model(file, kv_type, device)
    from decodepool_worker.verify.lab import BrokenGate  # noqa: PLC0415 - see `loading`
    from decodepool_worker.verify.long_gate import LONG_CONTEXT_TOKENS  # noqa: PLC0415

    from decodepool_cli.verification import verification  # noqa: PLC0415

    longest = shape.max_context_tokens
    if longest < LONG_CONTEXT_TOKENS:
        raise bad_input(f"{file}: the gates need a context of {LONG_CONTEXT_TOKENS} tokens, the model's is {longest}")
    verified = verification(file, kv_type, threads, device)
    running = verified.results()
    try:
        with _failures_untold():
            results = list(running if json else _shown(running))
    except BrokenGate as error:
        raise Fault(str(error)) from None
    if json:
        print_json(described(results, verified.origin()))
    if results[-1].difference is not None:
        raise Fault(f"{results[-1].name}: {results[-1].difference}")
    if not json:
        console().print(verdict(results))


@contextmanager
def _failures_untold() -> Iterator[None]:
    """Keep from people what the scheduler logs of failed sessions: gates fail some on purpose."""
    scheduler = logging.getLogger("decodepool_worker.sessions")
    level = scheduler.level
    scheduler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        scheduler.setLevel(level)


def described(results: Iterable[GateResult], origin: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed for `--json`."""
    gates = [
        {"name": gate.name, "rows": gate.rows, "bytes": gate.bytes, "equal": gate.equal, "difference": gate.difference}
        for gate in results
    ]
    return {"ok": all(gate["equal"] for gate in gates), **origin, "gates": gates}


def verdict(results: Sequence[GateResult]) -> str:
    """Return the last line of what is printed for people, once every gate is equal."""
    return f"{len(results)} gates, {sum(gate.bytes for gate in results):,} bytes: all equal"


def _shown(results: Iterator[GateResult]) -> Iterator[GateResult]:
    """Pass results on, each shown as a row of a table as soon as it is there."""
    from rich.live import Live  # noqa: PLC0415 - not for `--json`

    first = next(results)  # nothing is shown before the model is open, and so able to run
    table = columns("gate", "rows", "bytes compared", "")
    with Live(table, console=(shown := console()), auto_refresh=False) as live:
        for result in chain([first], results):
            _add_row(table, result)
            live.refresh()
            yield result
    if not shown.is_terminal:  # rich ends the table's last line for a terminal only
        shown.line()


def _add_row(table: Table, result: GateResult) -> None:
    mark = "[green]equal[/green]" if result.equal else "[red]different[/red]"
    table.add_row(result.name, f"{result.rows:,}", f"{result.bytes:,}", mark)
