"""`decodepool bench`: how long a step takes at each width, how fast a prompt is read, how much memory it all takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.kv import KVType
from decodepool_sizing.shape import read_shape
from decodepool_sizing.workspace import MAX_SESSIONS
from decodepool_worker.model.named_shapes import SHAPES, named_header

from decodepool_cli.faults import bad_input
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import Device, KeptAs, Threads, require_kept, runnable_model
from decodepool_cli.output import AsJson, columns, console, facts, plain, print_json, print_whole, size

if TYPE_CHECKING:
    from decodepool_worker.engine.open import Wanted
    from rich.table import Table

    from decodepool_cli.cases import Cases

DEFAULT_WIDTHS = "1,2,4,8,16"
DEFAULT_CONTEXT = 512
DEFAULT_TYPE = "Q8_0"
SHAPE_HELP = (
    f"Measure a shape with random weights on a GPU; there is {', '.join(SHAPES)}. Timed are 1 to 64 sessions of 1k "
    "tokens, 1 and 16 of 8k, 1 and 4 of 32k, and 16 of 8k kept as q8_0. "
    "With --widths, --context or another --kv-type than f16, that alone is measured."
)


def bench(
    *,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A GGUF file.")] = None,
    shape: Annotated[str | None, typer.Option(help=SHAPE_HELP)] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="Q8_0", help=f"The shape's random weights, such as Q4_K_M; {DEFAULT_TYPE} by default."
        ),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(metavar="1,2,4", help=f"Sessions that decode together; {DEFAULT_WIDTHS} by default.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help=f"Tokens that each holds when its steps are timed; {DEFAULT_CONTEXT} by default."),
    ] = None,
    device: Device = "cpu",
    kv_type: KeptAs = KVType.F16,
    threads: Threads = None,
    profile: Annotated[bool, typer.Option("--profile", help="On a GPU, the phases of steps too.")] = False,
    json: AsJson = False,
) -> None:
    """Measure step time, tokens per second and memory."""
    interrupt_on_terminate()
    if (file is None) == (shape is None):
        raise bad_input("give one of FILE and --shape")
    if device != "cuda" and (profile or shape is not None):
        raise bad_input(f"{'--profile' if profile else '--shape'}: only with --device cuda")
    asked = Asked(device, kv_type, threads, profile, widths, context, is_told=not json)
    report = _of_shape(shape, weights, asked) if shape is not None else _of_file(file, weights, asked)
    if json:
        print_json(report)
    else:
        _show(report)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that a file and a shape have in common."""

    device: DeviceKind
    kv_type: KVType
    threads: int | None
    is_profiled: bool
    widths: str | None
    context: int | None
    is_told: bool

    def cases(self, most_tokens: int) -> Cases:
        """Return the steps to time; bad input where a session of so many tokens would exceed the model's own."""
        from decodepool_cli.cases import even_cases  # noqa: PLC0415 - see `loading`
        from decodepool_cli.measuring import ROOM_TOKENS  # noqa: PLC0415

        counts, context = (
            parse_widths(DEFAULT_WIDTHS if self.widths is None else self.widths),
            self.context or DEFAULT_CONTEXT,
        )
        if context + ROOM_TOKENS > most_tokens:
            largest = most_tokens - ROOM_TOKENS
            raise bad_input(f"--context: {context} is more than {largest}, the model's own less the steps to be timed")
        return even_cases(context, counts, is_profiled=self.is_profiled)

    def tell(self, cases: Cases) -> None:
        """Tell people what is timed, and how long that takes at least: until its end there is nothing to see."""
        if not self.is_told:
            return
        from decodepool_cli.measuring import least_seconds  # noqa: PLC0415 - see `loading`

        steps = len(cases.decodes) + len(cases.sampled)
        seconds = least_seconds(steps, len(cases.prompts))
        console().print(f"Timing {steps} kinds of steps, {seconds:.0f} s at least, once the model is loaded.\n")

    def wanted(self) -> Wanted:
        """Return how the model is opened, but for its room."""
        from decodepool_worker.engine.open import Wanted  # noqa: PLC0415 - see `loading`

        return Wanted(1, kv_type=self.kv_type, threads=self.threads, device=self.device)


def _of_file(file: Path | None, weights: str | None, asked: Asked) -> dict[str, Any]:
    assert file is not None
    if weights is not None:
        raise bad_input("--type: a file has its own")
    model, shape = runnable_model(file, asked.kv_type, asked.device)
    cases = asked.cases(shape.max_context_tokens)
    asked.tell(cases)
    from decodepool_cli.measurement import measure  # noqa: PLC0415 - see `loading`
    from decodepool_cli.subjects import file_subject  # noqa: PLC0415

    return measure(file_subject(file, model.header.tensors, asked.wanted()), cases)


def _of_shape(name: str, weights: str | None, asked: Asked) -> dict[str, Any]:
    """Measure all that a shape is held against, or what is asked for alone."""
    from decodepool_cli.cases import shape_cases  # noqa: PLC0415 - see `loading`
    from decodepool_cli.measurement import measure  # noqa: PLC0415 - see `loading`
    from decodepool_cli.subjects import measure_shape, shape_subject  # noqa: PLC0415

    kind = weights or DEFAULT_TYPE
    subject = shape_subject(name, kind, asked.wanted())
    require_kept(read_shape(named_header(name, kind)), asked.kv_type, asked.device)
    if asked.widths is None and asked.context is None and asked.kv_type is KVType.F16:
        asked.tell(shape_cases(is_profiled=asked.is_profiled))
        return measure_shape(name, kind, threads=asked.threads, is_profiled=asked.is_profiled)
    cases = asked.cases(SHAPES[name].context_tokens)
    asked.tell(cases)
    return measure(subject, cases)


def parse_widths(text: str) -> list[int]:
    """Parse `1,2,4`; bad input names the first that is no width. Each is measured once, in the order given."""
    return list(dict.fromkeys(_width(word.strip()) for word in text.split(",")))


def _width(word: str) -> int:
    is_number = word.isascii() and word.isdigit() and len(word) < 6
    if not is_number or not 1 <= int(word) <= MAX_SESSIONS:
        raise bad_input(f"--widths: {word[:40]!r} is not a number of sessions, 1 to {MAX_SESSIONS}")
    return int(word)


def _show(report: dict[str, Any]) -> None:
    out = console()
    out.print(facts(_facts(report)))
    out.print()
    print_whole(out, _decode_table(report))
    for profile in report.get("profiles", []):
        out.print()
        print_whole(out, _profile_table(profile))
    out.print()
    for row in report["prefill"]:
        rate = f"{row['tokens_per_second']:,.0f} tokens per second"
        out.print(
            f"A prompt of {row['context']:,} tokens: {rate}, {row['seconds'] * 1e3:,.0f} ms (median of {row['runs']})"
        )
    for missing in report.get("not_measured", []):
        out.print(f"Not measured: {missing['reason']}")


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    from decodepool_cli.provenance import short  # noqa: PLC0415 - it describes kernels, so it brings them

    machine, memory = report["machine"], report["memory"]
    planned, measured = memory["planned_bytes"], memory["measured_bytes"]
    commit = f"commit {short(report['commit'])}"
    if "gpu" in machine:
        bandwidth = f"reads {report['read_bytes_per_second'] / 1e12:.2f} TB/s"
        kernels = f"{machine['gpu']}, {bandwidth}, driver {machine['cuda_driver']}, NVRTC {machine['nvrtc']}, {commit}"
    else:
        kernels = f"{machine['kernel_isa']}, {report['threads']} threads, {commit}"
    return [
        ("model", plain(report["model"])),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {size(machine['memory_bytes'])}"),
        ("kernels", kernels),
        ("memory", f"{size(measured)} resident, {size(planned)} planned ({measured / planned - 1:+.1%})"),
    ]


def _decode_table(report: dict[str, Any]) -> Table:
    headings = ["sessions", "context", "tokens/s", "step ms", "fastest", "slowest", "steps", "sampled ms"]
    on_gpu = "gpu" in report["machine"]
    table = columns(*headings, *(["host ms", "of floor", "kv"] if on_gpu else []))
    sampled = {(row["sessions"], row["context"]): f"{row['step_ms']:.2f}" for row in report["sampled"]}
    for row in report["decode"]:
        times = [f"{row[key]:.2f}" for key in ("step_ms", "step_ms_min", "step_ms_max")]
        rate, steps = f"{row['tokens_per_second']:,.1f}", str(row["steps"])
        cells = [str(row["sessions"]), f"{row['context']:,}", rate, *times, steps]
        drawn = sampled.get((row["sessions"], row["context"]), "")
        on_device = [f"{row['host_ms']:.2f}", f"{row['floor_fraction']:.0%}", row["kv_type"]] if on_gpu else []
        table.add_row(*cells, drawn, *on_device)
    return table


def _profile_table(profile: dict[str, Any]) -> Table:
    table = columns(f"{profile['sessions']} x {profile['context']:,}", "launches", "ms", "MB", "of read bandwidth")
    for phase in profile["phases"]:
        read = (f"{phase['bytes'] / 1e6:,.0f}", f"{phase['read_fraction']:.0%}") if phase["bytes"] else ("", "")
        table.add_row(phase["name"], str(phase["launches"]), f"{phase['ms']:.3f}", *read)
    return table
