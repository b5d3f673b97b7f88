from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from decodepool_cli.main import main

from tests.sizing.gguf_bytes import tiny


@dataclass(frozen=True)
class Done:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Done]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["decodepool", *map(str, words)])
        code = main()
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sound 2-layer llama."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny())
    return path
