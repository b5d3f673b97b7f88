from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from decodepool_cli import main as door
from decodepool_cli.faults import Fault, bad_input, one_line, translate
from decodepool_sizing.errors import BadManifest, BadModelFile, CannotFit, ContextTooLong

from tests.cli.conftest import Call


def test_the_version_is_the_packages(call: Call) -> None:
    assert re.fullmatch(r"decodepool \d+\.\d+\.\d+\n", call("--version").out)


def test_help_lists_the_commands_and_imports_none(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "import_module", lambda name: pytest.fail(f"imported {name}"))
    done = call("--help")
    assert done.code == 0
    assert all(re.search(rf"^  {name} ", done.out, re.M) for name in ("inspect", "plan"))


def test_brackets_in_help_are_shown_and_no_marks_for_the_terminal(call: Call) -> None:
    assert "[tokens, vocabulary]" in call("logits", "--help").out


def test_no_command_is_bad_usage_and_shows_the_help(call: Call) -> None:
    done = call()
    assert (done.code, done.out) == (2, "")
    assert "Commands:" in done.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["inspcet"], "decodepool: No such command 'inspcet'"),
        (["inspect"], "decodepool inspect: Missing argument"),
        (["inspect", "x", "--nope"], "decodepool inspect: No such option"),
        (["--nope"], "decodepool: No such option"),
    ],
    ids=["unknown command", "no argument", "unknown option", "unknown option of all"],
)
def test_bad_usage_is_one_line(call: Call, words: list[str], text: str) -> None:
    done = call(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(text)
    assert done.err.count("\n") == 1


def raising(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


ENDS: dict[str, tuple[BaseException, int, str]] = {
    "a fault": (Fault("it broke"), 1, "decodepool: it broke\n"),
    "bad input": (bad_input("no"), 2, "decodepool: no\n"),
    "a bad file": (BadModelFile("x: bad"), 2, "decodepool: x: bad\n"),
    "a bad manifest": (BadManifest(["a: missing", "b: missing"]), 2, "decodepool: a: missing; b: missing\n"),
    "a long context": (ContextTooLong("too long"), 2, "decodepool: too long\n"),
    "no room": (CannotFit("no", needed_bytes=2, available_bytes=1, advice="less"), 1, "decodepool: no; less\n"),
    "a missing extra": (
        ModuleNotFoundError("No module named 'numba'", name="numba"),
        1,
        "decodepool: this needs the module numba: `uv sync --inexact --extra worker` installs it in a checkout, ",
    ),
    "the system": (PermissionError(13, "Permission denied", "/x"), 1, "decodepool: /x: Permission denied\n"),
    "a bug": (KeyError("x"), 1, "decodepool: internal error at test_main.py:"),
    "an interrupt": (KeyboardInterrupt(), 130, ""),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_end_has_its_code_and_one_line(call: Call, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, code, text = ENDS[name]
    monkeypatch.setattr(door, "_run", raising(error))
    done = call()
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(text)
    assert done.err.count("\n") == (1 if text else 0)


def test_a_bug_shows_its_traceback_where_asked(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_run", raising(KeyError("x")))
    with pytest.raises(KeyError):
        call("--debug")


def test_a_fault_translates_to_itself() -> None:
    fault = Fault("x", 7)
    assert translate(fault) is fault
    assert one_line(" a\n  b\n\nc ") == "a; b; c"


def test_an_interrupt_ends_a_command_in_silence(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(door, "import_module", lambda _: SimpleNamespace(inspect=interrupted))
    done = call("inspect")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_a_reader_that_leaves_early_is_no_traceback(model: Path) -> None:
    code = "import sys; from decodepool_cli.main import main; sys.argv[1:] = sys.argv[2:]; sys.exit(main())"
    words = [sys.executable, "-c", code, "decodepool", "inspect", str(model), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_inspect_and_plan_import_no_engine(model: Path) -> None:
    code = (
        "import sys; from decodepool_cli.main import main; "
        f"sys.argv[1:] = ['plan', {str(model)!r}, '--context', '64', '--memory', '4Gi']; main(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "numba", "aiohttp", "tokenizers", "decodepool_worker"} & set(loaded)
    assert "decodepool_cli.plan" in loaded
