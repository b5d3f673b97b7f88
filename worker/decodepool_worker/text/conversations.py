"""A conversation in the words of a model's template, as token ids.

A turn cannot speak the template's own marks: where its content spells a control token, it is cut inside that spelling
before the template sees it, and the pieces of the rendered text are tokenized apart. So `<|im_end|>` in a user's words
stays a handful of plain tokens, and costs the other turns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from decodepool_worker.text.cuts import PIECE_CHARACTERS
from decodepool_worker.text.errors import NoTokenizer, TemplateFault, TextTooLong
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer
from decodepool_worker.text.vocabulary import TokenType

Rendered = list[dict[str, str]]

CUTS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode's noncharacters for private use: one that no turn holds marks the cuts."""

PROBE: Rendered = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
"""A turn whose rendering shows how this template ends an answer and what precedes the next turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Who says what. `name` and `tool_call_id` are for templates that know them."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None


class Conversations:
    """Tokenizes conversations for one model. Raises NoTokenizer and TemplateFault for what the model lacks.

    With `limit_tokens` a long one that has more raises TextTooLong, as `Tokenizer.encode` does.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, *, limit_tokens: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._limit_tokens = limit_tokens
        self._control = _control_pattern(tokenizer)

    def tokens(self, turns: Sequence[Turn], *, add_generation_prompt: bool) -> list[int]:
        """Tokenize a whole conversation."""
        cut = _unused_mark(turns)
        rendered = self._render(self._cut_contents(turns, cut), add_generation_prompt)
        return self._encode_pieces(rendered, cut, add_bos=None)

    def next_tokens(self, turns: Sequence[Turn], before: Sequence[int], *, add_generation_prompt: bool) -> list[int]:
        """Tokenize turns that follow the tokens `before`: first what is missing of the present turn's end."""
        cut = _unused_mark(turns)
        probe = self._render(PROBE, False)
        whole = self._render([*PROBE, *self._cut_contents(turns, cut)], add_generation_prompt)
        head, answered, closing = probe.rpartition("answer")
        if not answered or not whole.startswith(head + answered + closing):
            raise TemplateFault(
                "this model's template rewrites earlier turns: append tokens or text instead of messages"
            )
        close = self._tokenizer.encode(closing, special=True, add_bos=False)
        return close[_overlap(before, close) :] + self._encode_pieces(whole[len(probe) :], cut, add_bos=False)

    def _render(self, turns: Rendered, add_generation_prompt: bool) -> str:
        if self._tokenizer.vocabulary is None:
            raise NoTokenizer
        return self._template.render(turns, add_generation_prompt=add_generation_prompt)

    def _encode_pieces(self, rendered: str, cut: str, *, add_bos: bool | None) -> list[int]:
        limit, tokens = self._limit_tokens, list[int]()
        for index, piece in enumerate(rendered.split(cut)):
            if limit is not None and len(tokens) > limit and len(rendered) > PIECE_CHARACTERS:
                raise TextTooLong(len(tokens), limit)
            bos = False if index else add_bos
            tokens += self._tokenizer.encode(piece, special=True, add_bos=bos, limit_tokens=limit)
        return tokens

    def _cut_contents(self, turns: Sequence[Turn], cut: str) -> Rendered:
        return [self._cut_content(turn, cut) for turn in turns]

    def _cut_content(self, turn: Turn, cut: str) -> dict[str, str]:
        content = turn.content
        if self._control is not None:
            content = self._control.sub(lambda found: found[1] + cut, content)
        extras = {"name": turn.name, "tool_call_id": turn.tool_call_id}
        said = {"role": turn.role, "content": content}
        return said | {name: text for name, text in extras.items() if text is not None}


def _control_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Match the first character of every spelling of a control token, overlapping ones too."""
    vocabulary = tokenizer.vocabulary
    if vocabulary is None:
        return None
    spelled = zip(vocabulary.texts, vocabulary.types, strict=True)
    texts = [re.escape(text) for text, kind in spelled if kind is TokenType.CONTROL and len(text) > 1]
    return re.compile(f"(?=(?:{'|'.join(texts)}))(.)", re.DOTALL) if texts else None


def _unused_mark(turns: Sequence[Turn]) -> str:
    said = "".join(turn.content for turn in turns)
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
