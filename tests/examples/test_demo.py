"""The demo's lines in their order, of a pool that only says its own."""

from __future__ import annotations

import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

DEMO = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "demo.py"))
POOL = "import time\nprint('a plan', flush=True)\ntime.sleep(0.3)\nprint('it is ready at some URL', flush=True)\n"


def started(program: str) -> tuple[subprocess.Popen[str], threading.Event, threading.Thread]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    ready = threading.Event()
    shown = threading.Thread(target=DEMO["show"], args=(process, ready))
    shown.start()
    return process, ready, shown


def test_what_the_pool_says_stands_before_the_question(capfd: pytest.CaptureFixture[str]) -> None:
    process, ready, shown = started(f"{POOL}time.sleep(60)")
    try:
        DEMO["wait_until_ready"](process, ready)
        assert capfd.readouterr().out == "a plan\nit is ready at some URL\n"
    finally:
        process.kill()
        process.wait()
        shown.join()


def test_a_pool_that_ends_ends_the_demo_with_its_code() -> None:
    process, ready, shown = started("raise SystemExit(3)")
    with pytest.raises(SystemExit) as caught:
        DEMO["wait_until_ready"](process, ready)
    shown.join()
    assert caught.value.code == 3
