"""Where a measurement's results go."""

from __future__ import annotations

from pathlib import Path


def made_folder(text: str) -> Path:
    """Return the folder of this name, made where there is none: before anything is measured that it would lose."""
    folder = Path(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
