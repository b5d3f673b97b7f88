"""What the docs name exists: links, commands, make targets, metrics; and the README's own session runs as written."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from pathlib import Path

import pytest
import typer
from decodepool_cli.main import COMMANDS, app

from tests.serving.live_server import live_worker

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code(page: Path) -> str:
    """All that a page shows as code."""
    found = re.findall(r"```.*?\n(.*?)```|`([^`\n]+)`", page.read_text(), re.DOTALL)
    return "\n".join(block or inline for block, inline in found)


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@EACH_PAGE
def test_commands_and_their_options_exist(page: Path) -> None:
    ours = "\n".join(line for line in code(page).splitlines() if not re.search(r"\b(?:kubectl|helm) ", line))
    for name, words in re.findall(r"\bdecodepool ([a-z]+)\b([^\n]*)", ours):
        assert name in COMMANDS, f"decodepool {name}"
        command = typer.main.get_command(app)
        known = {option for parameter in command.get_command(None, name).params for option in parameter.opts}  # type: ignore[attr-defined]
        unknown = [option for option in re.findall(r"(?<!\S)--?[a-z][-a-z]*", words) if option not in known]
        assert unknown == [], f"decodepool {name}"


@EACH_PAGE
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b", code(page))) <= targets


FOLDERS = "sizing|kernels|web|worker|gateway|operator|cli|charts|crds|cluster|docs|tests|examples|bench"
NAMED = re.compile(
    rf"(?<![\w./$:-])((?:{FOLDERS})/[\w.*/-]+|(?:[\w.*-]+/)*[\w*-]+\.(?:py|md|toml|yaml|yml|cu|cuh|css|js))\b/?"
)
PLACEHOLDER = re.compile(r"(?:^|/)[A-Z]+\.")


def repository_paths() -> list[str]:
    """Every file and folder, as it is and as the docs say it: `engine/cpu.py`, `kernels/cpu/lower.py`."""
    files = [
        path for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
    ]
    found = [f"/{path.relative_to(ROOT)}" for path in [*files, *ROOT.glob("*")]]
    return found + [re.sub(r"/decodepool_\w+", "", path) for path in found]


@EACH_PAGE
def test_paths_exist(page: Path) -> None:
    """Whatever is named as a file, or lies in one of the repository's folders. `POOL.yaml` is anybody's file."""
    named = [path.rstrip("/") for path in NAMED.findall(code(page)) if not PLACEHOLDER.search(path)]
    known = repository_paths()
    missing = [path for path in named if not fnmatch.filter(known, f"*/{path}")]
    assert missing == []


def test_a_path_that_does_not_exist_is_found() -> None:
    shown = "see sessions/loop.py, `tests/nothing`, worker/decodepool_worker/*/steps.py, POOL.yaml, engine/cpu.py"
    known = repository_paths()
    missing = [path for path in NAMED.findall(shown) if not fnmatch.filter(known, f"*/{path}")]
    assert missing == ["sessions/loop.py", "tests/nothing", "worker/decodepool_worker/*/steps.py", "POOL.yaml"]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "bench" / "README.md"], ids=["README", "bench"])
def test_no_place_for_figures_is_empty(page: Path) -> None:
    places = re.split(r"<!-- (?!.*: end)[^>]* -->", page.read_text())[1:]
    assert [place[:60] for place in places if not re.search(r"^\|", place[:600], re.MULTILINE)] == []


def test_the_metrics_of_the_operating_guide_are_those_of_a_worker() -> None:
    page = (ROOT / "docs" / "operating.md").read_text().partition("## Pools on a cluster")[0]
    named = {f"decodepool_{name}" for name in re.findall(r"`decodepool_([a-z_]+)", page)}
    named |= {f"decodepool_sessions{rest}" for rest in re.findall(r"`(_[a-z_]+_total)`", page)}
    with live_worker() as worker:
        worker.call("POST", "/v1/sessions", {"tokens": []})
        exported = set(
            re.findall(
                r"^(\w+?)(?:_bucket|_sum|_count|_created)?(?:\{| )", worker.call("GET", "/metrics").text, re.MULTILINE
            )
        )
    assert named - {"decodepool_worker", "decodepool_sizing", "decodepool_kernels"} <= exported


def test_the_readmes_session_runs_as_written() -> None:
    block = next(
        block
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if "S=http" in block
    )
    with live_worker() as worker:
        script = block.replace("http://127.0.0.1:${PORT:-8000}", worker.url).replace(
            "curl ", "curl --show-error --fail-with-body "
        )
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr + done.stdout[-500:]
    assert "event: done" in done.stdout
