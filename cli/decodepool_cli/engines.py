"""From a model file to engines and tokens, for commands. Import it late: it brings the engine with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from decodepool_sizing.errors import BadModelFile
from decodepool_worker.engine.open import Loaded, Wanted, open_model
from decodepool_worker.text.errors import BadTokenizer, NoTokenizer

from decodepool_cli.faults import bad_input
from decodepool_cli.loading import progress_bar
from decodepool_cli.model import Model

if TYPE_CHECKING:
    from decodepool_worker.text.tokenizer import Tokenizer


@contextmanager
def opened(file: Path, wanted: Wanted) -> Iterator[Loaded]:
    """Open a model for the time of a `with`. A fault of the file is bad input, and names the file."""
    try:
        with progress_bar(file.name) as progress:
            loaded = open_model(file, wanted, progress)
    except BadModelFile as error:
        raise bad_input(f"{file}: {error}") from None
    try:
        yield loaded
    finally:
        loaded.engine.close()


def tokenizer_of(model: Model) -> Tokenizer:
    """Return a model's tokenizer; bad input where the file has none, or a broken one."""
    from decodepool_worker.text.tokenizer import Tokenizer  # noqa: PLC0415 - not for token ids

    try:
        tokenizer = Tokenizer.from_metadata(model.header.metadata)
    except BadTokenizer as error:
        raise bad_input(f"{model.source}: {error}") from None
    if tokenizer.vocabulary is None:
        raise bad_input(f"{model.source}: {NoTokenizer()}")
    return tokenizer
