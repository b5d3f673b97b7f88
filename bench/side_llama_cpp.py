"""The other side of `against_llama_cpp.py`: llama.cpp by its C interface. Needs llama-cpp-python and numpy alone."""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from typing import Any

import numpy as np

llama: Any = importlib.import_module("llama_cpp")  # not a dependency: nobody's type checker shall look for it

F16 = 1


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Drop what llama.cpp logs."""


class Side:
    """A context with `rows` sequences that hold the prompt."""

    def __init__(self, model: str, rows: int, prompt: list[int], steps: int, threads: int) -> None:
        llama.llama_log_set(silent, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
        self.context = llama.llama_init_from_model(
            self.model, parameters(rows, len(prompt) + steps + 1, prompt, threads)
        )
        assert self.context, "llama.cpp made no context"
        self.memory = llama.llama_get_memory(self.context)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.prompt = prompt
        self.batch = llama.llama_batch_init(max(len(prompt), rows), 0, 1)
        for sequence in range(rows):
            self.prefill(sequence)

    def prefill(self, sequence: int) -> float:
        """Read the prompt; return the seconds."""
        llama.llama_memory_seq_rm(self.memory, sequence, -1, -1)
        last = len(self.prompt) - 1
        began = time.perf_counter()
        self.evaluate([(token, at, sequence, at == last) for at, token in enumerate(self.prompt)])
        self.best(last)
        return time.perf_counter() - began

    def decode(self, rows: int, steps: int) -> float:
        """Draw `steps` tokens greedily in each of `rows` sequences, from the prompt on; return the seconds."""
        tokens, length = [self.prompt[-1]] * rows, len(self.prompt)
        began = time.perf_counter()
        for position in range(length, length + steps):
            self.evaluate([(token, position, sequence, True) for sequence, token in enumerate(tokens)])
            tokens = [self.best(row) for row in range(rows)]
        seconds = time.perf_counter() - began
        for sequence in range(rows):
            llama.llama_memory_seq_rm(self.memory, sequence, length, -1)
        return seconds

    def evaluate(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Run one batch of (token, position, sequence, whether its logits are wanted)."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, sequence, wanted
        code = llama.llama_decode(self.context, self.batch)
        assert code == 0, f"llama_decode gave {code}"

    def best(self, row: int) -> int:
        """Return the likeliest token after a row, as our sampler finds it."""
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(self.context, row), (self.vocabulary,))
        return int(logits.argmax())


def parameters(rows: int, each: int, prompt: list[int], threads: int) -> Any:
    """Room for `rows` sequences, f16 keys and values, and prompts in one piece."""
    wanted = llama.llama_context_default_params()
    each = -(-each // 256) * 256  # llama.cpp rounds a sequence's room up to this
    wanted.n_ctx, wanted.n_seq_max = rows * each, rows
    wanted.n_batch = wanted.n_ubatch = max(512, len(prompt))
    wanted.n_threads = wanted.n_threads_batch = threads
    wanted.type_k = wanted.type_v = F16
    wanted.no_perf = True
    return wanted


def main() -> None:
    asked = json.loads(sys.argv[1])
    side = Side(asked["model"], asked["rows"], asked["prompt"], asked["steps"], asked["threads"])
    features = llama.llama_print_system_info().decode()
    print(json.dumps({"version": llama.__version__, "features": features}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        seconds = side.prefill(0) if task["rows"] == 0 else side.decode(task["rows"], asked["steps"])
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
