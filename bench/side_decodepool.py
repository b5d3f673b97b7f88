"""One side of `against_llama_cpp.py`: our engine, told over stdin what to time. See there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from decodepool_sizing.kv import pages
from decodepool_worker.engine.open import Wanted, open_model
from decodepool_worker.engine.rows import Draw, Engine, Sampled, Sampling, Span

GREEDY = Sampling(temperature=0.0)


class Side:
    """An engine with `rows` sessions that hold the prompt."""

    def __init__(self, model: Path, rows: int, prompt: list[int], steps: int, threads: int) -> None:
        context = len(prompt) + steps + 1
        self.engine: Engine = open_model(model, Wanted(context, rows, threads=threads)).engine
        self.tables = [list(range(i * pages(context), (i + 1) * pages(context))) for i in range(rows)]
        self.prompt = prompt
        for table in self.tables:
            self.prefill(table)

    def prefill(self, table: list[int]) -> float:
        """Read the prompt; return the seconds."""
        began = time.perf_counter()
        for first in range(0, len(self.prompt), self.engine.max_step_rows):
            chunk = self.prompt[first : first + self.engine.max_step_rows]
            is_last = first + len(chunk) == len(self.prompt)
            self.engine.step([Span(table, first, chunk, 0 if is_last else None)])
        return time.perf_counter() - began

    def decode(self, rows: int, steps: int) -> float:
        """Draw `steps` tokens greedily in each of `rows` sessions, from the prompt on; return the seconds."""
        tokens, length = [self.prompt[-1]] * rows, len(self.prompt)
        began = time.perf_counter()
        for position in range(length, length + steps):
            draw = Draw(GREEDY, 0, position + 1, ())
            outcomes = self.engine.step([Span(self.tables[i], position, [tokens[i]], i, draw) for i in range(rows)])
            tokens = [outcome.token for outcome in outcomes if isinstance(outcome, Sampled)]
        return time.perf_counter() - began


def main() -> None:
    asked = json.loads(sys.argv[1])
    side = Side(Path(asked["model"]), asked["rows"], asked["prompt"], asked["steps"], asked["threads"])
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        seconds = side.prefill(side.tables[0]) if task["rows"] == 0 else side.decode(task["rows"], asked["steps"])
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
