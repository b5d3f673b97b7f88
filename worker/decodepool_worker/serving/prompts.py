"""From what a request says to token ids: ids as they are, text, or a conversation in the words of the model's template.

A message cannot speak the template's own marks: where its content spells a control token, it is cut inside that
spelling before the template sees it, and the pieces of the rendered text are tokenized apart. So `<|im_end|>` in a
user's words stays a handful of plain tokens, and costs the other messages nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from decodepool_worker.serving.offload import SMALL_CHARACTERS, Offload
from decodepool_worker.serving.session_bodies import Message
from decodepool_worker.text.errors import NoTokenizer, TemplateFault
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer
from decodepool_worker.text.vocabulary import TokenType

Rendered = list[dict[str, Any]]

CUTS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode's noncharacters for private use: one that no message holds marks the cuts."""

PROBE: Rendered = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
"""A turn whose rendering shows how this template ends an answer and what precedes the next message."""


class Prompts:
    """The text side of one model. What a model lacks is refused by name."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, offload: Offload) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._offload = offload
        self._control = _control_pattern(tokenizer)

    async def of_text(self, text: str, *, special: bool, add_bos: bool | None) -> list[int]:
        """Tokenize a text."""
        return await self._offload.run(len(text), self.tokenizer.encode, text, special=special, add_bos=add_bos)

    async def of_messages(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """Tokenize a whole conversation."""
        return await self._offload.run(_offloaded(messages), self._conversation, messages, add_generation_prompt)

    async def of_next_messages(
        self, messages: Sequence[Message], before: Sequence[int], *, add_generation_prompt: bool
    ) -> list[int]:
        """Tokenize messages that follow the tokens `before`: first what is missing of the present turn's end."""
        return await self._offload.run(
            _offloaded(messages), self._continuation, messages, before, add_generation_prompt
        )

    async def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return await self._offload.run(len(tokens), self.tokenizer.decode, tokens)

    def token_text(self, token: int) -> str:
        """Return one token's text, its broken bytes replaced."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return one token's bytes; a control token's are its spelling."""
        return self.tokenizer.token_bytes(token)

    def _conversation(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
        cut = _unused_mark(messages)
        rendered = self._render(self._cut_contents(messages, cut), add_generation_prompt)
        return self._encode_pieces(rendered, cut, add_bos=None)

    def _continuation(
        self, messages: Sequence[Message], before: Sequence[int], add_generation_prompt: bool
    ) -> list[int]:
        cut = _unused_mark(messages)
        probe = self._render(PROBE, False)
        whole = self._render([*PROBE, *self._cut_contents(messages, cut)], add_generation_prompt)
        head, answered, closing = probe.rpartition("answer")
        if not answered or not whole.startswith(head + answered + closing):
            raise TemplateFault(
                "this model's template rewrites earlier turns: append tokens or text instead of messages"
            )
        close = self.tokenizer.encode(closing, special=True, add_bos=False)
        return close[_overlap(before, close) :] + self._encode_pieces(whole[len(probe) :], cut, add_bos=False)

    def _render(self, messages: Rendered, add_generation_prompt: bool) -> str:
        if self.tokenizer.vocabulary is None:
            raise NoTokenizer
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def _encode_pieces(self, rendered: str, cut: str, *, add_bos: bool | None) -> list[int]:
        first, *others = rendered.split(cut)
        tokens = self.tokenizer.encode(first, special=True, add_bos=add_bos)
        for piece in others:
            tokens += self.tokenizer.encode(piece, special=True, add_bos=False)
        return tokens

    def _cut_contents(self, messages: Sequence[Message], cut: str) -> Rendered:
        return [self._cut_content(message, cut) for message in messages]

    def _cut_content(self, message: Message, cut: str) -> dict[str, Any]:
        content = message.text()
        if self._control is not None:
            content = self._control.sub(lambda found: found[1] + cut, content)
        role = "system" if message.role == "developer" else message.role
        extras = {"name": message.name, "tool_call_id": message.tool_call_id}
        return {"role": role, "content": content, **{name: text for name, text in extras.items() if text is not None}}


def _control_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Match the first character of every spelling of a control token, overlapping ones too."""
    vocabulary = tokenizer.vocabulary
    if vocabulary is None:
        return None
    spelled = zip(vocabulary.texts, vocabulary.types, strict=True)
    texts = [re.escape(text) for text, kind in spelled if kind is TokenType.CONTROL and len(text) > 1]
    return re.compile(f"(?=(?:{'|'.join(texts)}))(.)", re.DOTALL) if texts else None


def _unused_mark(messages: Sequence[Message]) -> str:
    said = "".join(message.text() for message in messages)
    for mark in CUTS:
        if mark not in said:
            return mark
    raise TemplateFault("the messages use every one of Unicode's noncharacters U+FDD0 to U+FDEF")


def _overlap(before: Sequence[int], close: Sequence[int]) -> int:
    """Return how many of `close`'s first tokens `before` ends with: the longest that fits."""
    for count in range(min(len(close), len(before)), 0, -1):
        if list(before[-count:]) == list(close[:count]):
            return count
    return 0


def _offloaded(messages: Sequence[Message]) -> int:
    """Always leave the event loop: a template is the file's code, and nobody knows how long it takes."""
    return SMALL_CHARACTERS + sum(len(message.text()) for message in messages) + 1
