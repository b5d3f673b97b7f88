"""A device that is lost: every stream ends with an error, liveness fails, the process ends, and no token is made up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver", reason="did not run: the `cuda` extra is not installed")
pytest.importorskip("pydantic", reason="did not run: what serving needs is not installed")

from tests.tiny.models import Tiny, write

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def test_a_device_that_is_lost_ends_every_stream_and_the_process(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write(Tiny(), model)
    command = [sys.executable, "-m", "tests.gpu.lost_device", str(model)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    seen = json.loads(done.stdout)
    assert [stream["last"] for stream in seen["streams"]] == ["error"] * 8
    assert all("CUDA" in stream["said"]["error"]["message"] for stream in seen["streams"])
    assert all(20 <= stream["tokens"] < 3990 for stream in seen["streams"])
    assert seen["create"] in {503, 0}
    assert seen["healthz"] in {503, 0}
    assert seen["seconds"] < 10
    assert "the engine failed" in done.stderr
