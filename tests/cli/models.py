"""Tiny models that commands can run: one that speaks in bytes, one without a tokenizer."""

from __future__ import annotations

from pathlib import Path

from tests.text.vocabularies import byte_bpe
from tests.tiny.models import Tiny, write

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<answer>"
WORDS = byte_bpe(words=("hello",))
VOCABULARY = len(WORDS["tokenizer.ggml.tokens"])  # type: ignore[arg-type]  # a list


def write_talking(path: Path, template: str | None = TEMPLATE) -> Path:
    """Write a model that speaks in bytes, most of them no UTF-8, with a chat template."""
    metadata = WORDS if template is None else {**WORDS, "tokenizer.chat_template": template}
    write(Tiny(vocabulary=VOCABULARY), path, metadata)
    return path


def write_untold(path: Path) -> Path:
    """Write a model that knows tokens alone."""
    write(Tiny(vocabulary=VOCABULARY), path)
    return path
