"""Where compiled code is kept, so that only a machine's first start compiles: a folder named after these sources, in
the user's cache directory.

numba by itself looks at one file's time stamp; here any change to any kernel is another folder. Files are written aside
and renamed, so an interrupted start leaves no half of one. Without a writable directory each start compiles anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

from decodepool_sizing import layouts


def kernel_digest() -> str:
    """Return a digest of these sources, of the layouts that are compiled into them, and of the compiler."""
    digest = hashlib.sha256(version("numba").encode())
    for source in (*sorted(Path(__file__).parent.glob("*.py")), Path(layouts.__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def kernel_cache_directory() -> Path:
    """Return the folder for this version of the kernels, whether or not it exists. RuntimeError for a user without a
    home.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "decodepool" / "kernels" / kernel_digest()


def prepare_cache() -> bool:
    """Point numba at the folder; return whether it can be written."""
    try:
        directory = kernel_cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, RuntimeError):
        return False
    from numba.core import config  # noqa: PLC0415 - half a second, which a file that is refused need not wait for

    config.CACHE_DIR = str(directory)  # type: ignore[attr-defined]  # set by name at start-up
    return True
