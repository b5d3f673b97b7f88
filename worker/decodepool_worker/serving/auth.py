"""API keys from a file: one a line, blank lines and `#` comments apart."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from decodepool_worker.serving.errors import ApiError


class KeyFileError(ValueError):
    """A key file that cannot be read, or holds no key."""


@dataclass(frozen=True)
class ApiKeys:
    """The keys that open the API. Without any, it is open."""

    keys: tuple[bytes, ...] = ()

    @classmethod
    def from_file(cls, path: Path) -> ApiKeys:
        """Read a key file; raise `KeyFileError` rather than serve without the keys that were asked for."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"{path}: {error}") from None
        keys = tuple(line.strip().encode() for line in lines if line.strip() and not line.lstrip().startswith("#"))
        if not keys:
            raise KeyFileError(f"{path}: no key in it")
        return cls(keys)

    def check(self, request: web.BaseRequest) -> None:
        """Raise `ApiError` 401 unless the request carries one of the keys as `Authorization: Bearer KEY`."""
        if not self.keys:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not _among(given.strip().encode("utf-8", "replace"), self.keys):
            raise ApiError("invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY")


def _among(given: bytes, keys: Sequence[bytes]) -> bool:
    """Compare with every key, in time that tells nothing of which came near."""
    return any([hmac.compare_digest(given, key) for key in keys])  # noqa: C419  # a list, so that no key is skipped
