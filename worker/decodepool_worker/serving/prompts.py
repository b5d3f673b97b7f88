"""The text side of a worker: what may take long leaves the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from decodepool_worker.serving.offload import SMALL_CHARACTERS, Offload
from decodepool_worker.serving.session_bodies import Message
from decodepool_worker.text.conversations import Conversations, Turn
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer


class Prompts:
    """Tokens from what requests say, and text from tokens, for one model. What it lacks is refused by name.

    A long text that cannot fit into `context_tokens`, where that is given, raises `TextTooLong` instead of being
    encoded. What is shorter is for the session to judge, which knows its own length.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, offload: Offload, *, context_tokens: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self._conversations = Conversations(tokenizer, template, limit_tokens=context_tokens)
        self._offload = offload
        self._limit_tokens = context_tokens

    async def of_text(self, text: str, *, special: bool, add_bos: bool | None) -> list[int]:
        """Tokenize a text that is to be in a session."""
        return await self._encoded(text, special, add_bos, self._limit_tokens)

    async def tokens_of(self, text: str, *, special: bool, add_bos: bool | None) -> list[int]:
        """Tokenize a text for its own sake, however long the context."""
        return await self._encoded(text, special, add_bos, None)

    async def of_messages(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """Tokenize a whole conversation."""
        turns = [message.turn() for message in messages]
        make = self._conversations.tokens
        return await self._offload.run(_size(turns), make, turns, add_generation_prompt=add_generation_prompt)

    async def of_next_messages(
        self, messages: Sequence[Message], before: Sequence[int], *, add_generation_prompt: bool
    ) -> list[int]:
        """Tokenize messages that follow the tokens `before`: first what is missing of the present turn's end."""
        turns = [message.turn() for message in messages]
        make = self._conversations.next_tokens
        return await self._offload.run(_size(turns), make, turns, before, add_generation_prompt=add_generation_prompt)

    async def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return await self._offload.run(len(tokens), self.tokenizer.decode, tokens)

    def token_text(self, token: int) -> str:
        """Return one token's text, its broken bytes replaced."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return one token's bytes; a control token's are its spelling."""
        return self.tokenizer.token_bytes(token)

    async def _encoded(self, text: str, special: bool, add_bos: bool | None, limit_tokens: int | None) -> list[int]:
        encode = partial(self.tokenizer.encode, special=special, add_bos=add_bos, limit_tokens=limit_tokens)
        return await self._offload.run(len(text), encode, text)


def _size(turns: Sequence[Turn]) -> int:
    """Always leave the event loop: a template is the file's code, and nobody knows how long it takes."""
    return SMALL_CHARACTERS + sum(len(turn.content) for turn in turns) + 1
