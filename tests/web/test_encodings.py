"""A compressed body is read as what it holds, however it comes; one without an end is none."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_web.encodings import MOST_STREAMS, PIECE_BYTES, BodyReader

MIXED = random.Random(1).randbytes(100_000) + b"a" * 300_000


def raw_deflate(plain: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return maker.compress(plain) + maker.flush()


def request(encoding: str, data: bytes, step: int) -> web.Request:
    """A request whose body comes `step` bytes at a time."""
    pieces: Iterator[bytes] = iter([data[at : at + step] for at in range(0, len(data), step)])

    async def readany() -> bytes:
        return next(pieces, b"")

    made: Any = SimpleNamespace(headers={"Content-Encoding": encoding}, content=SimpleNamespace(readany=readany))
    return cast(web.Request, made)


def pieces(encoding: str, data: bytes, step: int) -> list[bytes]:
    async def read() -> list[bytes]:
        body, found = BodyReader(request(encoding, data, step)), []
        while piece := await body.read():
            found.append(piece)
        return found

    return asyncio.run(read())


def test_streams_one_behind_the_other_are_bounded() -> None:
    assert pieces("gzip", gzip.compress(b"") * MOST_STREAMS, 1 << 20) == []
    with pytest.raises(ApiError, match=f"more than {MOST_STREAMS} gzip streams"):
        pieces("gzip", gzip.compress(b"") * (MOST_STREAMS + 1), 1 << 20)


@pytest.mark.parametrize(("encoding", "data"), [("", MIXED), ("x-gzip", gzip.compress(MIXED))])
def test_old_names_of_encodings_and_none_are_read(encoding: str, data: bytes) -> None:
    assert b"".join(pieces(encoding, data, 1 << 20)) == MIXED


@pytest.mark.parametrize("step", [1 << 20, 4096, 7, 1])
@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(MIXED)),
        ("GZIP", gzip.compress(MIXED[:70_000]) + gzip.compress(MIXED[70_000:])),
        ("deflate", zlib.compress(MIXED)),
        ("deflate", raw_deflate(MIXED)),
        ("identity", MIXED),
    ],
    ids=["gzip", "two members", "deflate", "deflate without a header", "identity"],
)
def test_a_body_is_what_was_compressed(encoding: str, data: bytes, step: int) -> None:
    found = pieces(encoding, data, step)
    assert b"".join(found) == MIXED
    assert max(map(len, found)) <= max(PIECE_BYTES, step)


@pytest.mark.parametrize("missing", [1, 5, 8, 9, 100])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("step", [1 << 20, 1000])
def test_a_body_that_is_cut_short_is_refused(encoding: str, missing: int, step: int) -> None:
    whole = gzip.compress(MIXED) if encoding == "gzip" else zlib.compress(MIXED)
    with pytest.raises(ApiError, match=f"its {encoding} stream is cut short"):
        pieces(encoding, whole[:-missing], step)


def test_a_wrong_checksum_is_refused() -> None:
    whole = gzip.compress(MIXED)
    with pytest.raises(ApiError, match="no gzip stream"):
        pieces("gzip", whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:], 1000)


def test_an_empty_body_is_empty_whatever_it_says() -> None:
    assert pieces("gzip", b"", 1) == []


def test_other_encodings_are_refused_by_name() -> None:
    with pytest.raises(ApiError, match="'br' is not read here"):
        pieces("br", b"x", 1)
