"""Where this user's files are kept that can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return `decodepool/NAME` in `$XDG_CACHE_HOME`, or in `~/.cache`, whether or not it exists.

    RuntimeError for a user without a home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decodepool" / name
