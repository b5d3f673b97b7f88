"""API keys from a mounted secret, read again when the file changes: a key is changed without a restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.api_keys import opens, parse_keys

logger = logging.getLogger("decodepool.gateway.keys")

LOOK_SECONDS = 2.0


class KeyFileError(ValueError):
    """A key file that cannot be read, or holds no key."""


class KeyFile:
    """The keys that open the API. Without a file, it is open."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.keys: tuple[bytes, ...] = () if path is None else read_keys(path)

    def check(self, request: web.BaseRequest) -> None:
        """Raise `ApiError` 401 unless the request carries one of the keys as `Authorization: Bearer KEY`."""
        if self.keys and not opens(self.keys, request.headers.get("Authorization", "")):
            raise ApiError("invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY")

    async def follow(self) -> None:
        """Read the file again and again. One that holds no key any more changes nothing: it would open the API."""
        while self._path is not None:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                keys = read_keys(self._path)
            except KeyFileError as error:
                logger.error("%s: the keys of before stay", error)
                continue
            if keys != self.keys:
                logger.info("%d API keys, read again from %s", len(keys), self._path)
                self.keys = keys


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read a key file; raise `KeyFileError` rather than serve without the keys that were asked for."""
    try:
        keys = parse_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from None
    if not keys:
        raise KeyFileError(f"{path}: no key in it")
    return keys
