"""A model from a URL into the user's cache: resumed where it was cut, checked, and moved into place whole.

The file's name in the cache begins with its digest, where the manifest gives one, else with its URL's: so two never
share a file. While it comes it is `NAME.part`, which only the holder of `NAME.lock` writes; what is called `NAME` is
complete: it has the digest, or else a header whose every tensor lies inside the file.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from decodepool_sizing.cache_folder import cache_folder
from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.header import read_header
from decodepool_sizing.readers import file_reader

from decodepool_cli.download import Download, Progress
from decodepool_cli.faults import Fault, bad_input


def fetched(url: str, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """Return the path of the model behind a URL, after fetching it if need be; `Fault` where it cannot be had."""
    target = _target(url, sha256)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(target.name + ".lock")):
        if target.exists():
            return target
        part = target.with_name(target.name + ".part")
        Download(url, part, has_digest=sha256 is not None, progress=progress).run()
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


def _check(part: Path, url: str, sha256: str | None) -> None:
    """Delete a file that is not what it should be; `Fault` says why."""
    try:
        if sha256 is None:
            _check_header(part, url)
        else:
            _check_digest(part, url, sha256)
    except Fault:
        part.unlink()
        raise


def _check_header(part: Path, url: str) -> None:
    try:
        with file_reader(part) as reader:
            read_header(reader)
    except BadModelFile as error:
        raise bad_input(f"{url}: {error}; what came was deleted") from None


def _check_digest(part: Path, url: str, sha256: str) -> None:
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise Fault(f"{url}: its sha256 is {digest}, the manifest says {sha256}; what came was deleted")
