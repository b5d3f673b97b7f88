"""A model from a URL into a file: resumed where it was cut, checked, and moved into place whole.

While it comes it is `NAME.part`, which only the holder of `NAME.lock` writes; what is called `NAME` is complete: it has
the digest, or else a header whose every tensor lies inside the file. In the user's cache the name begins with the
digest, where one is given, else with the URL's: so two never share a file.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from decodepool_sizing.cache_folder import cache_folder
from decodepool_sizing.errors import BadModelFile, told_url
from decodepool_sizing.header import read_header
from decodepool_sizing.readers import file_reader

from decodepool_cli.download import Download, Progress
from decodepool_cli.faults import Fault, bad_input
from decodepool_cli.room import lock_of, make_room, need_room, part_of


@dataclass(frozen=True, slots=True)
class Remote:
    """A model behind a URL, the digest it must have if one is known, and headers for the URL's own host."""

    url: str
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def fetched(remote: Remote, progress: Progress | None = None) -> Path:
    """Return the path in the user's cache of a model, after fetching it if need be; `Fault` where it cannot be had."""
    name = Path(unquote(urlsplit(remote.url).path)).name or "model.gguf"
    digest = remote.sha256 or hashlib.sha256(remote.url.encode()).hexdigest()
    target = cache_folder("models") / f"{digest[:16]}-{name[-100:]}"
    fetch_to(target, remote, progress)
    return target


def fetch_to(target: Path, remote: Remote, progress: Progress | None = None, *, makes_room: bool = False) -> None:
    """Fetch a model to `target`, unless it is there; `Fault` where it cannot be had. With `makes_room`, other models of
    the folder are deleted where this one does not fit.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(lock_of(target)):
        if target.exists():
            return
        part, room = part_of(target), partial(make_room if makes_room else need_room, target)
        has_digest = remote.sha256 is not None
        Download(remote.url, part, room, has_digest=has_digest, progress=progress, headers=remote.headers).run()
        _check(part, told_url(remote.url), remote.sha256)
        part.replace(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a name: a second fetch of it waits, and then finds it done."""
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _check(part: Path, told: str, sha256: str | None) -> None:
    """Delete a file that is not what it should be; `Fault` says why. `told`: what it is called."""
    try:
        if sha256 is None:
            _check_header(part, told)
        else:
            _check_digest(part, told, sha256)
    except Fault:
        part.unlink()
        raise


def _check_header(part: Path, told: str) -> None:
    try:
        with file_reader(part) as reader:
            read_header(reader)
    except BadModelFile as error:
        raise bad_input(f"{told}: {error}; what came was deleted") from None


def _check_digest(part: Path, told: str, sha256: str) -> None:
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise Fault(f"{told}: its sha256 is {digest}, not {sha256}; what came was deleted")
