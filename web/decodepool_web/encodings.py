"""Bodies that come compressed, read as what they hold.

aiohttp's own decoder takes a gzip stream without an end for a whole one, and never tells a handler of a deflate stream
without one. So connections leave bodies as they come, and who reads one reads it through `BodyReader`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from decodepool_sizing.api_errors import ApiError

if TYPE_CHECKING:
    from zlib import _Decompress

PIECE_BYTES = 1 << 16
"""What is decoded at once: a reader with a limit stops long before a bomb is all there."""

MOST_STREAMS = 1024
"""One behind the other in a body, as gzip allows: each costs a copy of what follows it, however little it holds."""

ENCODINGS = ("identity", "gzip", "deflate")
ZLIB_METHOD = 8
"""The low half of a zlib header's first byte; a deflate stream without one is taken, too."""


class BodyReader:
    """Reads the body of a request, piece by piece."""

    def __init__(self, request: web.Request) -> None:
        self._content = request.content
        self._encoding = (request.headers.get("Content-Encoding") or "identity").lower().removeprefix("x-")
        if self._encoding not in ENCODINGS:
            message = f"Content-Encoding: {self._encoding[:40]!r} is not read here: gzip and deflate are"
            raise ApiError("malformed_request", message)
        self._stream: _Decompress | None = None
        self._streams = 0
        self._left = b""
        self._has_more = False

    async def read(self) -> bytes:
        """Return the next piece; b"" after the last. Raises `ApiError` malformed_request for what cannot be read."""
        try:
            return await self._next()
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise _malformed(" ".join(str(error).split())[:200]) from None

    async def _next(self) -> bytes:
        if self._encoding == "identity":
            return await self._content.readany()
        while self._has_more or (coming := await self._content.readany()):
            piece = self._decoded(self._left if self._has_more else coming)
            if piece:
                return piece
        if self._stream is not None and not self._stream.eof:
            raise _malformed(f"its {self._encoding} stream is cut short")
        return b""

    def _decoded(self, coming: bytes) -> bytes:
        """Return some of what has come; the rest is left for the next time."""
        if self._stream is None or (self._stream.eof and coming):
            self._streams += 1
            if self._streams > MOST_STREAMS:
                raise _malformed(f"it has more than {MOST_STREAMS} {self._encoding} streams")
            self._stream = zlib.decompressobj(self._window_bits(coming))
        try:
            piece = self._stream.decompress(coming, PIECE_BYTES)
        except zlib.error as error:
            raise _malformed(f"it is no {self._encoding} stream: {error}") from None
        self._left = self._stream.unconsumed_tail or self._stream.unused_data
        self._has_more = bool(self._left) or (len(piece) == PIECE_BYTES and not self._stream.eof)
        return piece

    def _window_bits(self, head: bytes) -> int:
        if self._encoding == "gzip":
            return 16 + zlib.MAX_WBITS
        return zlib.MAX_WBITS if head[0] % 16 == ZLIB_METHOD else -zlib.MAX_WBITS


def _malformed(why: str) -> ApiError:
    return ApiError("malformed_request", f"the body cannot be read: {why}")
