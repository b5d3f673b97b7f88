"""Where compiled images are kept, so that only a machine's first start compiles: in the user's cache directory, in a
folder a version of the sources, of which the latest stay.

An image lies behind a digest of its own bytes: what was damaged since is compiled anew and not loaded. A cache that
cannot be read or written only means compiling again, and is warned of once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from decodepool_sizing.cache_folder import cache_folder

logger = logging.getLogger("decodepool.kernels")

SEAL_BYTES = hashlib.sha256().digest_size
KEPT_VERSIONS = 4
"""Versions of the sources whose images are kept: what changed last may change back."""


def cache_directory() -> Path:
    """Return where images are kept, whether or not it exists. RuntimeError for a user without a home."""
    return cache_folder("cuda")


def kept(version: str, name: str) -> bytes | None:
    """Return an image as it was kept; None where it was not, or is damaged."""
    try:
        sealed = (cache_directory() / version / name).read_bytes()
    except (OSError, RuntimeError):
        return None
    image = sealed[SEAL_BYTES:]
    return image if sealed[:SEAL_BYTES] == _seal(image) else None


def keep(version: str, name: str, image: bytes) -> None:
    """Keep an image, in place of one of the same name."""
    try:
        folder = cache_directory() / version
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            forget_old_versions(folder.parent)
        _write(folder / name, _seal(image) + image)
    except OSError as error:
        _warn_once(f"{cache_directory()}: {error.strerror}")
    except RuntimeError as error:
        _warn_once(str(error))


def forget_old_versions(folders: Path) -> None:
    """Remove all but what was written to last."""
    with suppress(OSError):  # another start does the same
        for old in sorted(folders.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_VERSIONS]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def _seal(image: bytes) -> bytes:
    return hashlib.sha256(image).digest()


def _write(path: Path, content: bytes) -> None:
    """Write aside and rename, so that an interrupted start leaves no half of a file under this name."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@cache
def _warn_once(reason: str) -> None:
    logger.warning("compiled kernels cannot be kept, so each start compiles for up to 15 seconds: %s", reason)
