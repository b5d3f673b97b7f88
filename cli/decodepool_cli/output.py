"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from decodepool_sizing.quantities import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_COLUMNS = 1000
"""What no table needs."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
"""The `--json` option of every command whose output is data."""


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def console() -> Console:
    """Return the terminal. Imported late: programs that ask for JSON need none of it."""
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a two-column list of facts."""
    from rich.table import Table  # noqa: PLC0415

    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def columns(*headings: str) -> Table:
    """Return an empty table: the first column on the left, numbers on the right."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    return table


def print_whole(out: Console, table: Table) -> None:
    """Print a table with no cell shortened or folded: a terminal that is narrower wraps its lines."""
    from rich.measure import Measurement  # noqa: PLC0415

    width = out.width
    needed = Measurement.get(out, out.options.update(width=MOST_COLUMNS), table).maximum
    out.width = max(width, needed)
    out.print(table)
    out.width = width


def size(amount: int) -> str:
    """Return bytes for people."""
    return format_bytes(amount)


def plain(text: str) -> str:
    """Return a file's own text so that it is not read as markup."""
    return text.replace("[", "\\[")
