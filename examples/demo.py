"""`make demo`: serve examples/smollm2.yaml on this machine, stream one answer, and keep serving until Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PORT = int(os.environ.get("PORT", "8000"))
URL = f"http://127.0.0.1:{PORT}"
MANIFEST = Path(__file__).with_name("smollm2.yaml")
QUESTION = "What is the capital of France? Answer in one sentence."
START_SECONDS = 300


def pool() -> subprocess.Popen[bytes]:
    """Start the pool that the manifest describes."""
    models = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decodepool" / "models"
    command = [str(Path(sys.executable).with_name("decodepool")), "run", str(MANIFEST), "--port", str(PORT)]
    return subprocess.Popen([*command, "--map", f"/var/lib/decodepool/models={models}"])


def wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """Return once the worker admits sessions. The first start on a machine compiles the kernels, about 20 seconds."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(process.returncode or 1)
        try:
            with urllib.request.urlopen(f"{URL}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    process.terminate()
    sys.exit(f"not ready after {START_SECONDS} s")


def answer(question: str) -> Iterator[str]:
    """Stream a chat answer, piece by piece."""
    body = {"model": model(), "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        for line in stream:
            data = line.decode().removeprefix("data: ").strip()
            if data.startswith("{"):
                yield json.loads(data)["choices"][0]["delta"].get("content") or ""


def model() -> str:
    """Return the name of the served model."""
    with urllib.request.urlopen(f"{URL}/v1/models", timeout=5) as reply:
        return str(json.load(reply)["data"][0]["id"])


def main() -> None:
    """Run the demo."""
    process = pool()
    try:
        wait_until_ready(process)
        print(f"\n> {QUESTION}\n  ", end="")
        for piece in answer(QUESTION):
            print(piece, end="", flush=True)
        print(f"\n\n  watch it      {URL}/\n  openai SDK    base_url={URL}/v1\n  stop it       Ctrl-C\n", flush=True)
        sys.exit(process.wait())
    except KeyboardInterrupt:
        process.wait()
    finally:
        process.terminate()


if __name__ == "__main__":
    main()
