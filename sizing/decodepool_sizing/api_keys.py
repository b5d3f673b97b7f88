"""API keys out of a file: one a line, blank lines and `#` comments apart. What was read can be read again."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from pathlib import Path

from decodepool_sizing.api_errors import ApiError

logger = logging.getLogger("decodepool.keys")


class KeyFileError(ValueError):
    """A key file that cannot be read, or holds no key."""


class ApiKeys:
    """The keys that open an API. Without any, it is open. Those of a file can be read again."""

    def __init__(self, keys: Sequence[bytes] = (), path: Path | None = None) -> None:
        self.keys = tuple(keys)
        self._path = path

    @classmethod
    def from_file(cls, path: Path) -> ApiKeys:
        """Read a key file; raise `KeyFileError` rather than serve without the keys that were asked for."""
        return cls(_read(path), path)

    def check(self, authorization: str) -> None:
        """Raise `ApiError` 401 unless an `Authorization` header carries one of the keys as `Bearer KEY`."""
        if self.keys and not opens(self.keys, authorization):
            raise ApiError("invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY")

    def reread(self) -> None:
        """Take the file's keys as they are now. One without a key changes nothing: it would open the API."""
        if self._path is None:
            return
        try:
            keys = _read(self._path)
        except KeyFileError as error:
            logger.error("%s: the keys of before stay", error)
            return
        if keys != self.keys:
            logger.info("%d API keys, read again from %s", len(keys), self._path)
            self.keys = keys


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        keys = parse_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from None
    if not keys:
        raise KeyFileError(f"{path}: no key in it")
    return keys


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
