"""What a model's header tells a command, before the engine is imported: that takes a second, a refusal should not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.errors import told_url
from decodepool_sizing.kv import KVType
from decodepool_sizing.readers import is_url
from decodepool_sizing.session_bytes import kv_types
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.support import run_kv_types

from decodepool_cli.faults import bad_input
from decodepool_cli.model import Model, read_model

ModelPath = Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file.")]
KeptAs = Annotated[KVType, typer.Option(help="How keys and values are kept.")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of a step; all cores by default.")]
Device = Annotated[DeviceKind, typer.Option(help="What to run on.")]
Special = Annotated[bool, typer.Option("--special", help="Read marks such as <|im_end|> in the text as marks.")]
"""Options that every command which runs a model has in common."""


def runnable_model(file: Path, kv_type: KVType = KVType.F16, device: DeviceKind = "cpu") -> tuple[Model, ModelShape]:
    """Read a model's header; bad input unless the device's engine runs it, with keys and values of this type."""
    if is_url(str(file)):
        raise bad_input(f"{told_url(str(file))}: fetch the file first; only `inspect` and `plan` read URLs")
    model = read_model(str(file))
    if model.shape is None or model.refusals:
        raise bad_input(f"{file}: {model.refusals[0]}")
    require_kept(model.shape, kv_type, device)
    return model, model.shape


def require_kept(shape: ModelShape, kv_type: KVType, device: DeviceKind) -> None:
    """Bad input unless a device's engine keeps the keys and values of a model in this type."""
    possible = [kind.value for kind in kv_types(shape) if kind in run_kv_types(device)]
    if kv_type not in possible:
        where = "" if device == "cpu" else "on a GPU, "
        raise bad_input(f"--kv-type: {where}this model keeps nothing as {kv_type}; possible are {', '.join(possible)}")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what draws loading on stderr, for a terminal; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - not for programs
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415

    shown = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label.replace("[", "\\["), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
