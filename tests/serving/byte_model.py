"""A served model without weights: bytes for tokens, logits a hash of the history with a peak at the next letter.

Greedy decodes go on with the alphabet, "... X Y Z A B ...", from the last letter there is; sampled ones wander off it.
What a session draws depends on its tokens and seed alone, as the real engine's must, so streams can be compared with
`lone_tokens`.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from decodepool_worker.engine.rows import Draw, NonFiniteLogits, Outcome, Sampled, Sampling, Span
from decodepool_worker.engine.sampling import draw_token
from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.serving.service import Served, Service
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.worker import Worker
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer
from numpy.typing import NDArray

ALPHABET = list(b"A B C D E F G H I J K L M N O P Q R S T U V W X Y Z ")
START, END = 256, 257
TOKENIZER_ROWS, MATRIX_ROWS = 258, 264
NAN_TOKEN = 7
"""A byte that no text here has, and that is never drawn: a session that was given it has logits that are not finite."""

GREEDY = Sampling(temperature=0.0)


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """GPT-2's letters for bytes, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def byte_vocabulary() -> dict[str, object]:
    """Metadata of a tokenizer of single bytes."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*byte_letters(), "<|im_start|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": END,
    }


def byte_tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(byte_vocabulary())


def logits_after(history: Sequence[int]) -> NDArray[np.float32]:
    """float32 [264]: noise of std 1 from a hash of the history, and 12 more for the alphabet's next letter."""
    if NAN_TOKEN in history:
        return np.full(MATRIX_ROWS, np.nan, np.float32)
    seed = zlib.crc32(np.asarray(history, np.int32).tobytes())
    logits = np.random.default_rng(seed).standard_normal(MATRIX_ROWS).astype(np.float32)
    logits[END:] = -50
    logits[NAN_TOKEN] = -np.inf
    logits[_next_letter(history)] += 12
    return logits


def _next_letter(history: Sequence[int]) -> int:
    letters = [token for token in history[-2:] if token in ALPHABET and token != ord(" ")]
    if not letters:
        return ord("A")
    place = ALPHABET.index(letters[-1])
    return ALPHABET[(place + (1 if history[-1] == letters[-1] else 2)) % len(ALPHABET)]


def lone_tokens(tokens: Sequence[int], count: int, *, seed: int = 0, sampling: Sampling = GREEDY) -> list[int]:
    """What a lone session draws after `tokens`."""
    known = list(tokens)
    for _ in range(count):
        drawn = draw_token(logits_after(known), Draw(sampling, seed, len(known), known))
        assert isinstance(drawn, Sampled)
        known.append(drawn.token)
    return known[len(tokens) :]


@dataclass
class ByteEngine:
    """The engine of it. `pace()` is called before each step; `broken` makes the next one raise."""

    page_count: int
    slot_count: int
    pace: Callable[[], object] = lambda: None
    max_step_rows: int = 256
    vocabulary_size: int = MATRIX_ROWS
    broken: bool = False
    closed: bool = False
    rows: list[int] = field(default_factory=list)

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        self.pace()
        if self.broken:
            raise RuntimeError("illegal memory access")
        self.rows.append(len(spans))
        return [_draw(span.draw) for span in spans]

    def copy_page(self, source: int, target: int) -> None: ...

    def logits(self, slot: int) -> NDArray[np.float32]:
        return np.zeros(MATRIX_ROWS, np.float32)

    def copy_logits(self, source: int, target: int) -> None: ...

    def close(self) -> None:
        self.closed = True


def _draw(draw: Draw | None) -> Sampled | NonFiniteLogits | None:
    return None if draw is None else draw_token(logits_after(draw.history), draw)


class Gate:
    """A pace that can be held and let go, for tests that need a step not to end."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._open = threading.Event()
        self._open.set()

    def __call__(self) -> None:
        self._open.wait(30)
        if self.seconds:
            threading.Event().wait(self.seconds)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()


def served_bytes(service: Service, engine: ByteEngine, *, context_tokens: int = 512, sessions: int = 4) -> Served:
    """Serve the byte model. Call it on the event loop, and start the worker there."""
    tokenizer = byte_tokenizer()
    residence = Residence(
        engine,
        lambda after: tokenizer.detokenizer(after=after),
        context_tokens=context_tokens,
        sessions=sessions,
        observe_step=service.metrics.observe_step,
        tag=service.tag,
    )
    planned = {
        "weight_bytes": 100_000_000,
        "workspace_bytes": 20_000_000,
        "session_bytes": 12_000_000,
        "usable_bytes": 300_000_000,
        "reserve_bytes": 12_000_000 * sessions,
        "cache_bytes": 60_000_000,
        "resident_bytes": 230_000_000 + 12_000_000 * sessions,
    }
    return Served(
        name="bytes",
        architecture="bytes",
        vocabulary_size=MATRIX_ROWS,
        context_tokens=context_tokens,
        session_capacity=sessions,
        kv_type="f16",
        fingerprint="fp-bytes",
        limited_by="sessions asked for",
        planned=planned,
        measure=lambda: {"resident_bytes": 240_000_000, "weight_bytes": 100_000_000},
        worker=Worker(residence),
        prompts=Prompts(tokenizer, ChatTemplate(CHATML), service.offload, context_tokens=context_tokens),
        close=engine.close,
    )
