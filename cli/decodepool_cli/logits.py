"""`decodepool logits`: the raw logits after every token of a text, to a NumPy file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from decodepool_sizing.kv import KVType
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.workspace import MAX_SESSIONS

from decodepool_cli.faults import bad_input
from decodepool_cli.files import written_aside
from decodepool_cli.interrupts import interrupt_on_terminate
from decodepool_cli.loading import Device, KeptAs, ModelPath, Special, Threads, runnable_model
from decodepool_cli.model import Model

if TYPE_CHECKING:
    from decodepool_worker.engine.rows import Engine
    from numpy.typing import NDArray

DEFAULT_ROWS = 32
"""Tokens of one step. More would save little, and each keeps a row of logits."""


def logits(
    *,
    file: ModelPath,
    out: Annotated[
        Path, typer.Option(metavar="FILE.npy", help="Where the array goes: float32 \\[tokens, vocabulary].")
    ],
    tokens: Annotated[str | None, typer.Option(metavar="1,2,3", help="Token ids.")] = None,
    text: Annotated[str | None, typer.Option(help="A text, tokenized as the file says.")] = None,
    special: Special = False,
    device: Device = "cpu",
    kv_type: KeptAs = KVType.F16,
    rows: Annotated[
        int, typer.Option(min=1, max=MAX_SESSIONS, help="Tokens of one step: the result does not depend on it.")
    ] = DEFAULT_ROWS,
    threads: Threads = None,
) -> None:
    """Write the raw logits of a text."""
    interrupt_on_terminate()
    if (tokens is None) == (text is None):
        raise bad_input("give one of --tokens and --text")
    model, shape = runnable_model(file, kv_type, device)
    ids = _text_ids(model, text, special=special) if text is not None else token_ids(tokens or "", shape)
    if not ids:
        raise bad_input("--text: this is a text of no tokens")
    from decodepool_worker.engine.open import Wanted  # noqa: PLC0415 - see `loading`

    from decodepool_cli.engines import opened  # noqa: PLC0415

    kept = min(rows, len(ids))
    wanted = Wanted(len(ids), sessions=1, kv_type=kv_type, threads=threads, device=device, logits_rows=kept)
    with written_aside(out, "--out") as aside, opened(file, wanted) as loaded:
        array = np.lib.format.open_memmap(aside, "w+", np.float32, (len(ids), shape.vocabulary_size))
        fill(array, loaded.engine, ids)
        array.flush()


def token_ids(text: str, shape: ModelShape) -> list[int]:
    """Parse `1,2,3`; bad input names the first value that is no token."""
    return [_token_id(word.strip(), shape.vocabulary_size) for word in text.split(",")]


def _token_id(word: str, vocabulary_size: int) -> int:
    is_number = word.isascii() and word.isdigit() and len(word) < 12
    if not is_number or int(word) >= vocabulary_size:
        raise bad_input(f"--tokens: {word[:40]!r} is not one of the model's tokens, 0 to {vocabulary_size - 1}")
    return int(word)


def _text_ids(model: Model, text: str, *, special: bool) -> list[int]:
    from decodepool_cli.engines import tokenizer_of  # noqa: PLC0415 - see `loading`

    return tokenizer_of(model).encode(text, special=special)


def fill(array: NDArray[np.float32], engine: Engine, ids: list[int]) -> None:
    """Write the logits after each of `ids` into `array`, `[len(ids), vocabulary]`; a step has a row for each slot."""
    from decodepool_worker.engine.rows import Span  # noqa: PLC0415 - see `loading`

    pages = list(range(engine.page_count))
    for first in range(0, len(ids), engine.slot_count):
        step = ids[first : first + engine.slot_count]
        engine.step([Span(pages, first + slot, [token], slot) for slot, token in enumerate(step)])
        for slot in range(len(step)):
            array[first + slot] = engine.logits(slot)
