"""Runs the tests that launch every kernel once under NVIDIA's compute-sanitizer, and writes down what it found.

    python -m bench.gpu.sanitizer --out DIRECTORY [--tool memcheck] [--jobs 4] [--limit 600]

Writes DIRECTORY/h200-sanitizer-TOOL.json: the machine, the versions, and a line a test. Exits with 1 where anything
was found. It needs `compute-sanitizer` on PATH, pytest, and what `tests/gpu` needs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product

from decodepool_cli.provenance import provenance
from decodepool_kernels.cuda import nvrtc
from decodepool_kernels.cuda.device import Gpu

from bench.gpu.folders import made_folder
from tests.gpu.test_every_kernel import CASES, IN_CLUSTERS

TOOLS = ("memcheck", "racecheck", "synccheck")
MODELS = "tests/gpu/test_every_kernel.py::test_a_prompt_beside_others_has_the_bytes_of_its_tokens_alone"
FOLDS = "tests/gpu/test_attention.py::test_chunks_folded_in_clusters_have_the_bytes_of_those_that_a_block_a_slice_folds"
"""Of heads so wide that blocks of a cluster meet, as none does in a model that is small."""
TESTS = (
    *(f"{MODELS}[{name}]" for name in CASES),
    f"{FOLDS}[(8, 2, 256)-whole]",
    "tests/gpu/test_sessions.py::test_reading_leaves_the_exclusive_or_of_every_word",
)
UNFIT = {("racecheck", f"{MODELS}[{IN_CLUSTERS}]")}
"""What a tool cannot run: racecheck ends with an internal error in a step that draws in clusters."""
FOUND = 86
"""What the sanitizer exits with where it found something."""
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", "-o", "timeout=0", "-o", "addopts=", "--import-mode=importlib")
SHOWN_LINES = 60


@dataclass(frozen=True)
class Outcome:
    """One test under one tool: what was found, None where it did not come to a summary."""

    tool: str
    test: str
    found: int | None
    passed: bool
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether the test ran through and nothing was found."""
        return self.passed and self.found == 0


def run(tool: str, test: str, limit_seconds: float) -> Outcome:
    """Run one test under one tool; print a line of it, and what was said where it is not clean."""
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*sanitizer, sys.executable, "-m", "pytest", test, *PYTEST],
            capture_output=True, text=True, check=False, timeout=limit_seconds,
        )  # fmt: skip
        said, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        said, code = f"{(late.stdout or b'').decode()}\nnot done after {limit_seconds} s", -1
    summary = SUMMARY.findall(said)
    outcome = Outcome(tool, test, int(summary[-1]) if summary else None, code == 0, round(time.monotonic() - began, 1))
    print(f"{tool} {test}: found {outcome.found}, {outcome.seconds} s", flush=True)
    if not outcome.clean:
        print("\n".join(said.splitlines()[-SHOWN_LINES:]), flush=True)
    return outcome


def card() -> dict[str, str]:
    """Describe the GPU and what drives it."""
    gpu = Gpu()
    try:
        return {"gpu": gpu.name, "cuda_driver": gpu.driver_version, "nvrtc": nvrtc.version(), "sanitizer": version()}
    finally:
        gpu.close()


def version() -> str:
    """Return the sanitizer's own words."""
    said = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True, check=True).stdout
    return next(line.strip() for line in said.splitlines() if "Version" in line)


def told(outcomes: Sequence[Outcome]) -> str:
    """Return a line a tool."""
    lines = []
    for tool in dict.fromkeys(outcome.tool for outcome in outcomes):
        of_tool = [outcome for outcome in outcomes if outcome.tool == tool]
        clean = sum(outcome.clean for outcome in of_tool)
        lines.append(f"{tool}: {clean} of {len(of_tool)} clean, {sum(outcome.seconds for outcome in of_tool):.0f} s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=made_folder, required=True)
    parser.add_argument("--tool", action="append", dest="tools", choices=TOOLS)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--limit", type=float, default=600)
    options = parser.parse_args()
    every = list(product(options.tools or TOOLS, TESTS))
    work, unfit = [one for one in every if one not in UNFIT], [one for one in every if one in UNFIT]
    with ThreadPoolExecutor(options.jobs) as jobs:
        outcomes = list(jobs.map(lambda one: run(one[0], one[1], options.limit), work))
    for tool in dict.fromkeys(tool for tool, _ in work):
        results = [asdict(outcome) for outcome in outcomes if outcome.tool == tool]
        not_run = [test for of, test in unfit if of == tool]
        report = {**provenance(card()), "results": results, "not_run": not_run}
        (options.out / f"h200-sanitizer-{tool}.json").write_text(json.dumps(report, indent=2) + "\n")
    print(
        told(outcomes), *(f"{tool} {test}: did not run, the tool cannot" for tool, test in unfit), sep="\n", flush=True
    )
    return 0 if all(outcome.clean for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
