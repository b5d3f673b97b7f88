"""Chat templates: a conversation to the text that the model was trained to continue.

A template that does not compile does not stop a model from loading: sessions of plain prompts need none. The fault is
kept, and raised to whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from jinja2 import Template

from decodepool_worker.text.errors import TemplateFault
from decodepool_worker.text.sandbox import MAX_SIZE, Sandbox, metered

Message = Mapping[str, str]


class ChatTemplate:
    """A model's chat template. `bos` and `eos` are how its marks are spelled; `fault`, if any, why it is of no use."""

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "") -> None:
        self._marks = {"bos_token": bos, "eos_token": eos}
        self._template: Template | None = None
        self.fault: str | None = None
        if source is None:
            self.fault = "the model carries no chat template: send a prompt instead of messages"
            return
        try:
            self._template = _sandbox().compile_metered(source)
        except Exception as error:  # a template is foreign code: whatever it does to the compiler is its own fault
            self.fault = _describe(error)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text for `messages`, to be encoded with `special=True`. Raises TemplateFault, for this request
        alone.
        """
        if self._template is None:
            raise TemplateFault(self.fault)
        values: dict[str, object] = {
            "messages": messages,
            "tools": None,
            "add_generation_prompt": add_generation_prompt,
            **self._marks,
        }
        try:
            return _collect(self._template, metered(values))
        except TemplateFault:
            raise
        except Exception as error:  # foreign code again; RecursionError and MemoryError are among what it may raise
            raise TemplateFault(_describe(error)) from error


@cache
def _sandbox() -> Sandbox:
    return Sandbox()


def _collect(template: Template, values: dict[str, object]) -> str:
    pieces, size = [], 0
    for piece in template.generate(values):
        size += len(piece)
        if size > MAX_SIZE:
            raise TemplateFault(f"the chat template writes more than {MAX_SIZE} characters")
        pieces.append(piece)
    return "".join(pieces)


def _describe(error: Exception) -> str:
    words = " ".join(str(error).split())[:300]
    return f"chat template: {words or type(error).__name__}"
