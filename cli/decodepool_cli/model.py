"""Reading the model that a command was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from decodepool_sizing.errors import BadModelFile, told_url
from decodepool_sizing.header import Header, read_header
from decodepool_sizing.readers import model_reader
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.support import model_refusals
from decodepool_sizing.tokenizer_facts import TokenizerFacts, tokenizer_facts

from decodepool_cli.faults import bad_input

FileOrURL = Annotated[str, typer.Argument(metavar="FILE|URL", help="A GGUF file, or an http(s) URL of one.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Send this header to a URL's host; repeatable.")
]


@dataclass(frozen=True, slots=True)
class Model:
    """A model file's header and what follows from it. `shape` is None where nobody has described the architecture."""

    source: str
    header: Header
    shape: ModelShape | None
    refusals: list[str]
    tokenizer: TokenizerFacts

    @property
    def title(self) -> str:
        """The file's name, and what the model calls itself in it."""
        file = told_url(self.source).rstrip("/").rpartition("/")[2]
        return f"{file}: {self.shape.name if self.shape else self.header.architecture}"


def read_model(source: str, headers: Mapping[str, str] | None = None) -> Model:
    """Read a path or a URL. A fault of the file is bad input, and names the file."""
    try:
        with model_reader(source, headers) as reader:
            header = read_header(reader)
        shape, refusals = model_refusals(header)
        return Model(source, header, shape, refusals, tokenizer_facts(header))
    except BadModelFile as error:
        raise bad_input(f"{told_url(source)}: {error}") from None


def header_options(texts: Sequence[str] | None) -> dict[str, str]:
    """Return `NAME: VALUE` options as request headers."""
    headers = {}
    for text in texts or ():
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not text.isprintable():
            raise bad_input("--header: expected 'NAME: VALUE'")
        headers[name.strip()] = value.strip()
    return headers
