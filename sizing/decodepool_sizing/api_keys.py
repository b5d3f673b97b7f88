"""API keys as a file has them: one a line, blank lines and `#` comments apart."""

from __future__ import annotations

import hmac
from collections.abc import Sequence


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys of a file's text; none where it has none."""
    return tuple(
        line.strip().encode() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    )


def opens(keys: Sequence[bytes], authorization: str) -> bool:
    """Tell whether an `Authorization` header carries one of the keys as `Bearer KEY`."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and _among(given.strip().encode("utf-8", "replace"), keys)


def _among(given: bytes, keys: Sequence[bytes]) -> bool:
    """Compare with every key, in time that tells nothing of which came near."""
    return any([hmac.compare_digest(given, key) for key in keys])  # noqa: C419  # a list, so that no key is skipped
