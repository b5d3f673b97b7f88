"""One session in this thread: the server's residence without the server, and an answer that is told as it comes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.kv import KVType
from decodepool_sizing.shape import ModelShape
from decodepool_worker.engine.open import Wanted
from decodepool_worker.engine.rows import Sampling
from decodepool_worker.engine.sampling import check_sampling
from decodepool_worker.sessions.decodes import DecodeRequest
from decodepool_worker.sessions.events import EndEvent, TokenEvent
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.session import Session
from decodepool_worker.text.conversations import Conversations, Turn
from decodepool_worker.text.errors import TemplateFault
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer

from decodepool_cli.engines import opened, tokenizer_of
from decodepool_cli.faults import bad_input
from decodepool_cli.model import Model


@dataclass(frozen=True, slots=True)
class Words:
    """What is said to the model: a turn of a conversation, or with `raw` a text to go on from as it is."""

    prompt: str
    system: str | None = None
    raw: bool = False
    special: bool = False

    def tokens(self, model: Model, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens that the server would make of them; bad input where the template cannot be used."""
        if self.raw:
            return tokenizer.encode(self.prompt, special=self.special)
        source = model.header.metadata.get("tokenizer.chat_template")
        template = ChatTemplate(str(source), bos=tokenizer.bos_text, eos=tokenizer.eos_text)
        said = [("system", self.system), ("user", self.prompt)]
        turns = [Turn(role, text) for role, text in said if text is not None]
        try:
            return Conversations(tokenizer, template).tokens(turns, add_generation_prompt=True)
        except TemplateFault as error:
            raise bad_input(f"{model.source}: {error}; --raw goes without it") from None


@dataclass(frozen=True, slots=True)
class Ask:
    """All that is asked of one answer. `context_tokens` None: as many as prompt and answer need, if there are."""

    file: Path
    words: Words
    sampling: Sampling
    seed: int | None
    max_tokens: int
    context_tokens: int | None
    kv_type: KVType
    threads: int | None
    device: DeviceKind = "cpu"


@contextmanager
def answering(ask: Ask, model: Model, shape: ModelShape, out: TextIO) -> Iterator[Answer]:
    """Load the model with room for one session, and give that the prompt. Bad input before anything is loaded."""
    try:
        check_sampling(ask.sampling, shape.vocabulary_size)
    except ValueError as error:
        raise bad_input(f"--{str(error).replace('_', '-')}") from None
    tokenizer = tokenizer_of(model)
    tokens = ask.words.tokens(model, tokenizer)
    context = ask.context_tokens or min(len(tokens) + ask.max_tokens, shape.max_context_tokens)
    if not 0 < len(tokens) <= context:
        raise bad_input(f"--prompt: {len(tokens)} tokens, and the context is {context}")
    with opened(ask.file, Wanted(context, 1, ask.kv_type, threads=ask.threads, device=ask.device)) as loaded:
        residence = Residence(
            loaded.engine,
            lambda after: tokenizer.detokenizer(after=after),
            context_tokens=context,
            sessions=1,
        )
        session = residence.create(tokens, seed=ask.seed, sampling=ask.sampling)
        yield Answer(residence, session, DecodeRequest(ask.max_tokens, stop_tokens=tokenizer.eos_ids), out)


@dataclass(eq=False)
class Answer:
    """A decode that writes its text to `out` as it becomes certain, never half a character. What `out` raises ends it:
    a sink must not raise, so events wait here until their step is over.
    """

    residence: Residence
    session: Session
    request: DecodeRequest
    out: TextIO
    began: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    drawn: int = 0
    end: EndEvent | None = None
    prompt_tokens: int = 0
    events: deque[TokenEvent | EndEvent] = field(default_factory=deque)

    def run(self) -> EndEvent:
        """Run the decode to its end. An interrupt ends it where it is, its text told as far as it got."""
        self.prompt_tokens = len(self.session.tokens)
        self.began = time.perf_counter()
        self.residence.decode(self.session.id, self.request, self.events.append)
        try:
            while self.end is None:
                self.residence.tick()
                self._write()
        except KeyboardInterrupt:
            self.residence.cancel(self.session.id)
            self._write()
            raise
        return self.end

    def summary(self) -> str:
        """Say how much was done, how fast, and why it ended."""
        prompt = self.prompt_tokens
        parts = [f"{prompt} tokens of prompt"]
        if self.first_token is not None and self.last_token is not None:
            parts = [f"{prompt} tokens of prompt at {_rate(prompt, self.first_token - self.began)}"]
            parts.append(f"{self.drawn} drawn at {_rate(self.drawn - 1, self.last_token - self.first_token)}")
        if self.session.sampling.temperature > 0:
            parts.append(f"seed {self.session.seed}")
        if self.end is not None:
            parts.append(self.end.error or self.end.finish_reason)
        return ", ".join(parts)

    def _write(self) -> None:
        while self.events:
            event = self.events.popleft()
            self.out.write(event.text)
            if isinstance(event, EndEvent):
                self.end = event
                self.out.write("\n")
            else:
                self.last_token = time.perf_counter()
                self.first_token = self.first_token or self.last_token
                self.drawn += 1
        self.out.flush()


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f} tok/s" if count and seconds > 0 else "- tok/s"
