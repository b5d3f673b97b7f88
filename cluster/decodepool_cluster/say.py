"""Progress, for a person: on stderr, so that stdout is what a command gives."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Tell a line at once."""
    sys.stderr.write(f"{line}\n")
