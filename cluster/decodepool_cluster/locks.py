"""One maker at a time, and nobody who removes what another uses."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from decodepool_cluster.linux import ClusterFault


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that of several makers one makes it and the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def alone_at_once(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder without a wait, and leave no file of it. ClusterFault where somebody else holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    while True:
        with path.open("a") as lock:
            if not _took(lock):
                raise ClusterFault(f"another command starts or stops {folder}: wait for its end, or end it")
            if _is_at(path, lock):  # the one before may have removed what was just opened
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return


@contextmanager
def in_use(file: Path) -> Iterator[None]:
    """Hold a file, beside others who do, so that `is_in_use`."""
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_SH)
        yield


def is_in_use(file: Path) -> bool:
    """Tell whether somebody on this machine holds a file."""
    with file.open("rb") as opened:
        return not _took(opened)


def _took(opened: IO[str] | IO[bytes]) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, opened: IO[str]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(opened.fileno()))
    return False
