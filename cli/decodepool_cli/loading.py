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
from decodepool_sizing.support import RUN_KV_TYPES

from decodepool_cli.faults import bad_input
from decodepool_cli.model import Model, read_model

ModelPath = Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file.")]
KeptAs = Annotated[KVType, typer.Option(help="How keys and values are kept.")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of a step; all cores by default.")]
Device = Annotated[DeviceKind, typer.Option(help="What to run on.")]
Special = Annotated[bool, typer.Option("--special", help="Read marks such as <|im_end|> in the text as marks.")]
"""Options that every command which runs a model has in common."""


def runnable_model(file: Path, kv_type: KVType = KVType.F16) -> tuple[Model, ModelShape]:
    """Read a model's header; bad input unless the engine runs it, with keys and values of this type."""
    if is_url(str(file)):
        raise bad_input(f"{told_url(str(file))}: fetch the file first; only `inspect` and `plan` read URLs")
    model = read_model(str(file))
    if model.shape is None or model.refusals:
        raise bad_input(f"{file}: {model.refusals[0]}")
    possible = [kind.value for kind in kv_types(model.shape) if kind in RUN_KV_TYPES]
    if kv_type not in possible:
        raise bad_input(f"--kv-type: this model keeps nothing as {kv_type}; possible are {', '.join(possible)}")
    return model, model.shape


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
