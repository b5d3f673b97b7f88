"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decodepool_cli.faults import bad_input


@contextmanager
def written_aside(path: Path, option: str) -> Iterator[Path]:
    """Yield a file beside `path` to write into; it takes the path's place when all went well, and is removed otherwise.

    `option` is named where the place cannot be written to.
    """
    if path.is_dir():
        raise bad_input(f"{option}: {path} is a directory")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise bad_input(f"{option}: {path.parent}: {error.strerror}") from None
    os.close(descriptor)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o666 & ~_umask())  # mkstemp makes files for their owner alone
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
