"""What a body takes of a gateway's memory while it is held."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from decodepool_gateway.bodies import Bodies

PIECES = 100_000


class Request(dict[str, Any]):
    """A request whose body comes two bytes at a time."""

    def __init__(self) -> None:
        self.left = PIECES
        self.body_exists, self.content_length = True, None
        self.headers: dict[str, str] = {}
        self.content = SimpleNamespace(readany=self.readany)

    async def readany(self) -> bytes:
        self.left -= 1
        return bytes(bytearray(2)) if self.left >= 0 else b""


async def peak_bytes() -> int:
    tracemalloc.start()
    try:
        async with Bodies().body(cast(web.Request, Request())) as body:
            assert body == bytes(2 * PIECES)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_body_takes_little_more_than_its_bytes_however_small_its_pieces_are() -> None:
    assert asyncio.run(peak_bytes()) < 4 * 2 * PIECES
