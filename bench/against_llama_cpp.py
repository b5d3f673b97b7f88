"""Our engine and llama.cpp on one machine, in one run, by turns: so that what disturbs one disturbs the other.

llama.cpp is no dependency of the project. It goes into an environment of its own, and is compiled for this machine:

    uv venv /tmp/llama && uv pip install --python /tmp/llama/bin/python llama-cpp-python==0.3.36 numpy
    python bench/against_llama_cpp.py MODEL.gguf --python /tmp/llama/bin/python

Each side is a process of its own that loads the model, gives eight sessions the same prompt, and then waits for tasks:
it holds no core while the other's is timed. Both have the same threads, f16 keys and values, and draw greedily by the
same numpy call. A round is every task on both sides; which one begins alternates. A figure is the median of the rounds,
a ratio the median of the rounds' ratios. Results go to a JSON file and into the table of bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from decodepool_cli.provenance import provenance, short
from decodepool_sizing.host import usable_cores

BENCH = Path(__file__).parent
README = BENCH / "README.md"
BEGIN, END = "<!-- against llama.cpp: begin -->", "<!-- against llama.cpp: end -->"
WIDEST = 8


@dataclass(frozen=True)
class Task:
    """Something to be timed: `rows` sessions decoding together, or, with no rows, the prompt."""

    name: str
    rows: int
    tokens: int


class Side:
    """A process that times what it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.about = self.answer()

    def time(self, task: Task) -> float:
        """Return the seconds of a task."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"rows": task.rows}) + "\n")
        self.process.stdin.flush()
        return float(self.answer()["seconds"])

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"against_llama_cpp: {self.process.args!r} ended")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def side(python: str, script: str, asked: dict[str, Any]) -> Iterator[Side]:
    """Start a side; it ends with the `with`."""
    command = [python, str(BENCH / script), json.dumps(asked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Side(process)
        finally:
            process.kill()


def measure(sides: Sequence[Side], tasks: Sequence[Task], rounds: int) -> dict[Task, list[list[float]]]:
    """Return the seconds of each task: a list for each side, a figure for each round. A first round is not counted."""
    seconds: dict[Task, list[list[float]]] = {task: [[] for _ in sides] for task in tasks}
    for turn in range(rounds + 1):
        order = range(len(sides)) if turn % 2 else range(len(sides) - 1, -1, -1)
        for task in tasks:
            for index in order:
                found = sides[index].time(task)
                if turn:
                    seconds[task][index].append(found)
    return seconds


def described(task: Task, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Return one task's figures: tokens per second of both, and ours over theirs."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "name": task.name,
        "rows": task.rows,
        "decodepool": rates(task, ours),
        "llama_cpp": rates(task, theirs),
        "ratio": round(median(ratios), 3),
        "ratio_least": round(min(ratios), 3),
        "ratio_most": round(max(ratios), 3),
    }


def rates(task: Task, seconds: list[float]) -> dict[str, float]:
    """Return the median, least and most tokens per second."""
    found = sorted(task.tokens / each for each in seconds)
    return {"tokens_per_second": round(median(found), 1), "least": round(found[0], 1), "most": round(found[-1], 1)}


def table(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    rows = [
        f"| {row['name']} | {row['decodepool']['tokens_per_second']:,} | {row['llama_cpp']['tokens_per_second']:,} "
        f"| {row['ratio']:.2f} | {row['ratio_least']:.2f} to {row['ratio_most']:.2f} |"
        for row in report["tasks"]
    ]
    head = ["| tokens per second | decodepool | llama.cpp | ratio | ratio, least to most |", "|---|---|---|---|---|"]
    return "\n".join([BEGIN, *head, *rows, "", *provenance_lines(report), END])


def provenance_lines(report: dict[str, Any]) -> list[str]:
    """Say what was measured, on what, when, by which command."""
    machine = report["machine"]
    what = f"{report['model']}, f16 keys and values, {report['threads']} threads, {report['rounds']} rounds"
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel_isa']} kernels, {machine['system']}"
    which = f"commit {short(report['commit'])}, llama-cpp-python {report['llama_cpp_python']}, {report['date'][:10]}"
    return [f"{what}; {where}; {which}:", "", f"    {report['command']}"]


def put_into(readme: Path, text: str) -> None:
    """Replace what stands between the marks."""
    before, _, rest = readme.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(before + text + after)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--python", required=True, help="an interpreter that has llama_cpp and numpy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=48, help="tokens drawn in each session and round")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=BENCH / "results" / "cpu-against-llama-cpp.json")
    parser.add_argument("--dry", action="store_true", help="print, and write nothing")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    prompt = [(i * 7919 + 17) % 40_000 for i in range(chosen.prompt)]
    asked = {
        "model": str(chosen.model),
        "rows": WIDEST,
        "prompt": prompt,
        "steps": chosen.steps,
        "threads": chosen.threads,
    }
    tasks = [
        Task("1 session", 1, chosen.steps),
        Task(f"{WIDEST} sessions", WIDEST, WIDEST * chosen.steps),
        Task(f"a prompt of {chosen.prompt} tokens", 0, chosen.prompt),
    ]
    with ExitStack() as stack:
        ours = stack.enter_context(side(sys.executable, "side_decodepool.py", asked))
        theirs = stack.enter_context(side(chosen.python, "side_llama_cpp.py", asked))
        seconds = measure([ours, theirs], tasks, chosen.rounds)
    report = {
        **provenance(),
        "llama_cpp_python": theirs.about["version"],
        "llama_cpp_features": theirs.about["features"],
        "model": chosen.model.name,
        "kv_type": "f16",
        "threads": chosen.threads,
        "context": chosen.prompt,
        "rounds": chosen.rounds,
        "tasks": [described(task, *seconds[task]) for task in tasks],
    }
    print(table(report))
    if not chosen.dry:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n")
        put_into(README, table(report))


if __name__ == "__main__":
    main()
