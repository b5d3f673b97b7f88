"""The operator as a process, before there is anything to watch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.cli.processes import free_port

IMAGES = {f"DECODEPOOL_{name}_IMAGE": name.lower() for name in ("WORKER", "WORKER_CUDA", "GATEWAY", "OPERATOR")}


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    named = {"name": "x", "cluster": {"server": server}, "user": {}, "context": {"cluster": "x", "user": "x"}}
    parts = {f"{part}s": [{"name": "x", part: named[part]}] for part in ("cluster", "user", "context")}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}))
    return path


def test_an_operator_that_waits_for_its_definition_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """As process 1 of a pod it would otherwise go on until it is killed."""
    known = {"KUBECONFIG": str(kubeconfig(tmp_path, "http://127.0.0.1:9")), "DECODEPOOL_HTTP_PORT": str(free_port())}
    command = [sys.executable, "-m", "decodepool_operator"]
    with subprocess.Popen(command, env={**os.environ, **IMAGES, **known}, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        starts, waits = running.stderr.readline(), running.stderr.readline()
        assert ("starting" in starts, "WARNING" in waits.upper()) == (True, True), starts + waits
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
        assert "stopped" in running.stderr.read()
