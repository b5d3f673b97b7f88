"""`make demo`: serve examples/smollm2.yaml on this machine, stream one answer, and keep serving until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MANIFEST = Path(__file__).with_name("smollm2.yaml")
QUESTION = "What is the capital of France? Answer in one sentence."
START_SECONDS = 300


def port() -> int:
    """Return the port to serve on; end with a line where it is none, or taken."""
    text = os.environ.get("PORT", "8000")
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        sys.exit(f"PORT={text} is not a port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(text)))
        except OSError:
            sys.exit(f"port {text} is taken: PORT={int(text) + 1} make demo")
    return int(text)


def pool(number: int) -> subprocess.Popen[str]:
    """Start the pool that the manifest describes. What it says comes by a pipe, to stand before the question."""
    models = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decodepool" / "models"
    command = [str(Path(sys.executable).with_name("decodepool")), "run", str(MANIFEST), "--port", str(number)]
    command += ["--map", f"/var/lib/decodepool/models={models}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def show(process: subprocess.Popen[str], ready: threading.Event) -> None:
    """Show what the pool says until it ends; `ready` is set by the line that says so."""
    assert process.stdout is not None
    with process.stdout as said:
        for line in said:
            print(line, end="", flush=True)
            if " is ready at " in line:
                ready.set()


def wait_until_ready(process: subprocess.Popen[str], ready: threading.Event) -> None:
    """Return once the pool has said that it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while not ready.wait(0.2):
        if process.poll() is not None:
            sys.exit(process.returncode or 1)
        if time.monotonic() > deadline:
            sys.exit(f"not ready after {START_SECONDS} s")


def answer(url: str, question: str) -> Iterator[str]:
    """Stream a chat answer, piece by piece."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as stream:
        for line in stream:
            data = line.decode().removeprefix("data: ").strip()
            if data.startswith("{"):
                yield json.loads(data)["choices"][0]["delta"].get("content") or ""


def serve(process: subprocess.Popen[str], url: str, ready: threading.Event) -> int:
    """Show an answer and the URLs; return the pool's exit code once it ends."""
    wait_until_ready(process, ready)
    print(f"\n> {QUESTION}\n", end="", flush=True)
    for piece in answer(url, QUESTION):
        print(piece, end="", flush=True)
    print(f"\n\n  watch it      {url}/\n  openai SDK    base_url={url}/v1\n  stop it       Ctrl-C\n", flush=True)
    return process.wait()


def main() -> int:
    """Run the demo; whatever ends it ends the pool."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: sys.exit(128))
    number = port()
    process, ready = pool(number), threading.Event()
    shown = threading.Thread(target=show, args=(process, ready))
    shown.start()
    try:
        return serve(process, f"http://127.0.0.1:{number}", ready)
    except KeyboardInterrupt:
        return process.wait()
    finally:
        process.terminate()
        process.wait()
        shown.join()


if __name__ == "__main__":
    sys.exit(main())
