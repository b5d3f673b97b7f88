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

Message = Mapping[str, object]

_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


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

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the text for `messages`, to be encoded with `special=True`.

        A message's `content` is text, or OpenAI's list of text parts, which are joined by newlines. `variables` are
        passed on to the template (`enable_thinking` and the like). Raises TemplateFault, for this request alone.
        """
        if self._template is None:
            raise TemplateFault(self.fault)
        for name in _RESERVED:
            if variables and name in variables:
                raise TemplateFault(f"{name} is not a variable to be set from outside")
        values = {**(variables or {}), **self._marks, "tools": tools, "add_generation_prompt": add_generation_prompt}
        values["messages"] = [_with_plain_content(message, index) for index, message in enumerate(messages)]
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


def _with_plain_content(message: Message, index: int) -> Message:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if isinstance(content, Sequence):
        return {**message, "content": "\n".join(_part_text(part, index, place) for place, part in enumerate(content))}
    raise TemplateFault(f"messages[{index}].content: neither text nor a list of parts")


def _part_text(part: object, index: int, place: int) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise TemplateFault(f"messages[{index}].content[{place}]: only parts of type text can be read")
    return text


def _describe(error: Exception) -> str:
    words = " ".join(str(error).split())[:300]
    return f"chat template: {words or type(error).__name__}"
