"""`decodepool bench`: how long a step takes at each width, how fast a prompt is read, how much memory it all takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from decodepool_sizing.kv import KVType
from decodepool_sizing.workspace import MAX_STEP_ROWS

from decodepool_cli.faults import bad_input
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import KeptAs, ModelPath, Threads, runnable_model
from decodepool_cli.output import AsJson, columns, console, facts, plain, print_json, size

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_WIDTHS = "1,2,4,8,16"
DEFAULT_CONTEXT = 512


def bench(
    *,
    file: ModelPath,
    widths: Annotated[str, typer.Option(metavar="1,2,4", help="Sessions that decode together.")] = DEFAULT_WIDTHS,
    context: Annotated[
        int, typer.Option(min=1, help="Tokens that each session holds when its steps are timed.")
    ] = DEFAULT_CONTEXT,
    device: Annotated[Literal["cpu"], typer.Option(help="What to run on.")] = "cpu",
    kv_type: KeptAs = KVType.F16,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Measure step time, tokens per second and memory."""
    interrupt_on_terminate()
    _, shape = runnable_model(file, kv_type)
    counts = parse_widths(widths)
    from decodepool_cli.measurement import Subject, measure  # noqa: PLC0415
    from decodepool_cli.measuring import ROOM_TOKENS  # noqa: PLC0415 - see `loading`

    if context + ROOM_TOKENS > shape.max_context_tokens:
        largest = shape.max_context_tokens - ROOM_TOKENS
        raise bad_input(f"--context: {context} is more than {largest}, the model's own less the steps to be timed")
    report = measure(Subject(file, device, kv_type, threads, counts, context))
    if json:
        print_json(report)
    else:
        _show(report)


def parse_widths(text: str) -> list[int]:
    """Parse `1,2,4`; bad input names the first that is no width. Each is measured once, in the order given."""
    return list(dict.fromkeys(_width(word.strip()) for word in text.split(",")))


def _width(word: str) -> int:
    is_number = word.isascii() and word.isdigit() and len(word) < 6
    if not is_number or not 1 <= int(word) <= MAX_STEP_ROWS:
        raise bad_input(f"--widths: {word[:40]!r} is not a number of sessions, 1 to {MAX_STEP_ROWS}")
    return int(word)


def _show(report: dict[str, Any]) -> None:
    out = console()
    out.print(facts(_facts(report)))
    out.print()
    out.print(_decode_table(report))
    out.print()
    for row in report["prefill"]:
        rate = f"{row['tokens_per_second']:,.0f} tokens per second"
        out.print(
            f"A prompt of {row['context']:,} tokens: {rate}, {row['seconds'] * 1e3:,.0f} ms (median of {row['runs']})"
        )


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    from decodepool_cli.provenance import short  # noqa: PLC0415 - it describes kernels, so it brings them

    machine, memory = report["machine"], report["memory"]
    planned, measured = memory["planned_bytes"], memory["measured_bytes"]
    return [
        ("model", plain(report["model"])),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {size(machine['memory_bytes'])}"),
        ("kernels", f"{machine['kernel_isa']}, {report['threads']} threads, commit {short(report['commit'])}"),
        ("memory", f"{size(measured)} resident, {size(planned)} planned ({measured / planned - 1:+.1%})"),
    ]


def _decode_table(report: dict[str, Any]) -> Table:
    table = columns("sessions", "context", "tokens/s", "step ms", "fastest", "slowest", "steps", "sampled ms")
    for row, sampled in zip(report["decode"], report["sampled"], strict=True):
        times = [f"{row[key]:.2f}" for key in ("step_ms", "step_ms_min", "step_ms_max")]
        rate, steps = f"{row['tokens_per_second']:,.1f}", str(row["steps"])
        table.add_row(str(row["sessions"]), f"{row['context']:,}", rate, *times, steps, f"{sampled['step_ms']:.2f}")
    return table
