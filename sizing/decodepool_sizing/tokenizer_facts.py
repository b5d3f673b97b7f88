"""What a header says of its tokenizer; building one is the worker's."""

from __future__ import annotations

from dataclasses import dataclass

from decodepool_sizing.header import Header
from decodepool_sizing.metadata import Value


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The tokenizer's kind and size. `pre` names its pre-tokenizer; None where the file does not say."""

    model: str | None
    pre: str | None
    vocabulary_size: int
    has_chat_template: bool


def tokenizer_facts(header: Header) -> TokenizerFacts:
    """Read the tokenizer's facts; a file without a vocabulary may still give its size."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    size = header.metadata.get(f"{header.architecture}.vocab_size")
    count = len(tokens) if isinstance(tokens, tuple) else size if isinstance(size, int) else 0
    template = header.metadata.get("tokenizer.chat_template")
    return TokenizerFacts(
        model=_text(header.metadata.get("tokenizer.ggml.model")),
        pre=_text(header.metadata.get("tokenizer.ggml.pre")),
        vocabulary_size=count,
        has_chat_template=isinstance(template, str) and bool(template),
    )


def _text(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None
