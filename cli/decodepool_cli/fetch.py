"""A model from a URL into the user's cache: resumed where it was cut, checked, and moved into place whole.

The file's name in the cache begins with its digest, where the manifest gives one, else with its URL's: so two never
share a file. While it comes it is `NAME.part`, which only the holder of `NAME.lock` writes; what is called `NAME` is
complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import unquote, urlsplit

from decodepool_sizing.cache_folder import cache_folder

from decodepool_cli.faults import Fault

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 60.0
ATTEMPTS = 5
"""Times in a row that a connection may bring nothing."""

PAUSE_SECONDS = 1.0
"""How long to wait after one that brought nothing; twice as long after the next."""

Progress = Callable[[int, int], None]
"""Hears of bytes there are, and of all there will be; only where the server says how many."""


def fetched(url: str, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """Return the path of the model behind a URL, after fetching it if need be; `Fault` where it cannot be had."""
    target = _target(url, sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(target.name + ".lock")):
        if target.exists():
            return target
        part = target.with_name(target.name + ".part")
        if sha256 is None:
            part.unlink(missing_ok=True)  # nothing would tell if the file behind the URL was another by now
        _fetch(url, part, progress)
        _check(part, url, sha256)
        part.replace(target)
    return target


def _target(url: str, sha256: str | None) -> Path:
    name = Path(unquote(urlsplit(url).path)).name or "model.gguf"
    digest = sha256 or hashlib.sha256(url.encode()).hexdigest()
    return cache_folder("models") / f"{digest[:16]}-{name[-100:]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a name: a second fetch of it waits, and then finds it done."""
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _fetch(url: str, part: Path, progress: Progress | None) -> None:
    """Append what is missing to `part`, over as many connections as it takes."""
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _fetch_some(url, part, before, progress):
                return
            reason = "the connection was cut"
        except (OSError, HTTPException) as error:
            reason = _reason(error)
        after = part.stat().st_size if part.exists() else 0
        failures = 0 if after > before else failures + 1
        if failures >= ATTEMPTS:
            raise Fault(f"{url}: {reason}")
        if failures:
            time.sleep(PAUSE_SECONDS * 2 ** (failures - 1))


def _fetch_some(url: str, part: Path, have: int, progress: Progress | None) -> bool:
    """Read one answer into `part`; True if the file is complete."""
    headers = {"Range": f"bytes={have}-"} if have else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the manifest admits http and https alone
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:
                part.unlink()  # longer than the file is: not a beginning of it
                return False
            if error.code < 500:
                raise Fault(f"{url}: {error.code} {error.reason}") from None
            raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as out:
        return _copy(answer, out.write, have if answer.status == 206 else 0, progress)


def _copy(answer: HTTPResponse, write: Callable[[bytes], object], have: int, progress: Progress | None) -> bool:
    length = answer.headers.get("Content-Length")
    total = have + int(length) if length and length.isdigit() else None
    while chunk := answer.read(CHUNK_BYTES):
        write(chunk)
        have += len(chunk)
        if progress is not None and total is not None:
            progress(have, total)
    return total is None or have >= total


def _check(part: Path, url: str, sha256: str | None) -> None:
    if sha256 is None:
        return
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        part.unlink()
        raise Fault(f"{url}: its sha256 is {digest}, the manifest says {sha256}; what came was deleted")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(reason) or type(error).__name__
