"""Room on a volume for a model that is to come.

The volume of a pool's cache is bought for one model, so what earlier ones left there has to go. Workers lose nothing by
that: they read a file once, when they load it.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decodepool_sizing.quantities import format_bytes

from decodepool_cli.faults import Fault


def lock_of(target: Path) -> Path:
    """Return the file whose lock whoever fetches or deletes `target` holds."""
    return target.with_name(target.name + ".lock")


def part_of(target: Path) -> Path:
    """Return where a model is while it comes."""
    return target.with_name(target.name + ".part")


def need_room(target: Path, missing_bytes: int) -> None:
    """`Fault` where so many bytes more do not fit on the volume of `target`."""
    free_bytes = _free_bytes(target)
    if free_bytes < missing_bytes:
        come, free = format_bytes(missing_bytes), format_bytes(free_bytes)
        raise Fault(f"{target.parent}: {come} are to come, and {free} are free there")


def make_room(target: Path, missing_bytes: int) -> None:
    """Delete other models beside `target`, beginnings first and then the oldest, until so many bytes more fit; none
    that somebody is fetching. `Fault` where they do not fit then.
    """
    for other in _others(target):
        if _free_bytes(target) >= missing_bytes:
            break
        with _held(lock_of(other)) as is_free:
            if is_free:
                part_of(other).unlink(missing_ok=True)
                other.unlink(missing_ok=True)
    need_room(target, missing_bytes)


def _free_bytes(target: Path) -> int:
    """Return what is free; no end of it on a file system that tells no size, as some over object stores do."""
    usage = shutil.disk_usage(target.parent)
    return usage.free if usage.total else sys.maxsize


def _others(target: Path) -> list[Path]:
    """Return the other models of a folder, whole or begun."""
    whole = sorted(target.parent.glob("*.gguf"), key=lambda path: path.stat().st_mtime)
    begun = [path.with_suffix("") for path in target.parent.glob("*.gguf.part")]
    return [path for path in dict.fromkeys([*begun, *whole]) if path != target]


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock if nobody has it; say whether it is held."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
