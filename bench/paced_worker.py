"""A worker whose steps take a given time and no work: the rest of it is real, and so is what stands before it.

python -m bench.paced_worker --port 8001 --worker-tag-of NAME --sessions 64 --step-ms 5
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

import numpy as np
import uvloop
from decodepool_sizing.session_ids import worker_tag
from decodepool_web.sockets import listening_socket
from decodepool_worker.engine.rows import Outcome, Sampled, Span
from decodepool_worker.serving.prompts import Prompts
from decodepool_worker.serving.server import ServerOptions, serve_until_stopped
from decodepool_worker.serving.service import Served, Service
from decodepool_worker.sessions.residence import Residence
from decodepool_worker.sessions.worker import Worker
from decodepool_worker.text.templates import ChatTemplate
from decodepool_worker.text.tokenizer import Tokenizer
from numpy.typing import NDArray

CONTEXT = 4096
LETTERS = [chr(value) for value in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))]
PARTS = {"weight_bytes", "workspace_bytes", "session_bytes", "usable_bytes", "reserve_bytes", "cache_bytes"}


class PacedEngine:
    """Draws the next of its words, `step_seconds` after it was asked."""

    max_step_rows = 256

    def __init__(self, sessions: int, step_seconds: float) -> None:
        self.slot_count, self.page_count = sessions, 2 * sessions * CONTEXT // 64
        self.vocabulary_size = 256
        self._step_seconds = step_seconds

    def step(self, spans: Sequence[Span]) -> list[Outcome]:
        time.sleep(self._step_seconds)
        return [None if span.draw is None else Sampled(span.draw.position % len(LETTERS)) for span in spans]

    def copy_page(self, source: int, target: int) -> None: ...

    def logits(self, slot: int) -> NDArray[np.float32]:  # noqa: ARG002  all rows are alike
        return np.zeros(self.vocabulary_size, np.float32)

    def copy_logits(self, source: int, target: int) -> None: ...

    def close(self) -> None: ...


def served(service: Service, engine: PacedEngine) -> Served:
    """Put sessions and text on the engine."""
    words = [*LETTERS, *(chr(0x100 + i) for i in range(256 - len(LETTERS)))]
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": [1] * len(words),
            "tokenizer.ggml.merges": [],
        }
    )
    residence = Residence(
        engine,
        lambda after: tokenizer.detokenizer(after=after),
        context_tokens=CONTEXT,
        sessions=engine.slot_count,
        observe_step=service.metrics.observe_step,
        tag=service.tag,
    )
    return Served(
        name="paced",
        architecture="paced",
        vocabulary_size=engine.vocabulary_size,
        context_tokens=CONTEXT,
        session_capacity=engine.slot_count,
        kv_type="f16",
        fingerprint="paced",
        limited_by="sessions asked for",
        planned=dict.fromkeys((*PARTS, "resident_bytes"), 1),
        measure=dict,
        worker=Worker(residence),
        prompts=Prompts(tokenizer, ChatTemplate(None), service.offload, context_tokens=CONTEXT),
        close=engine.close,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker-tag-of", required=True)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=5.0)
    given = parser.parse_args()

    async def serve() -> int:
        service, listener = Service(tag=worker_tag(given.worker_tag_of)), listening_socket("127.0.0.1", given.port)
        engine = PacedEngine(given.sessions, given.step_ms / 1e3)
        options = ServerOptions(drain_timeout_seconds=1.0)
        return await serve_until_stopped(service, listener, lambda: served(service, engine), lambda _: None, options)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
