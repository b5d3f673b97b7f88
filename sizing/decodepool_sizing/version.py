"""Which release this is."""

from __future__ import annotations

from importlib import metadata

UNKNOWN = "unknown"


def release() -> str:
    """Return the installed package's version; `unknown` where the sources run without being installed."""
    try:
        return metadata.version("decodepool")
    except metadata.PackageNotFoundError:
        return UNKNOWN
