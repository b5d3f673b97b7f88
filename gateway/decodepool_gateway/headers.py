"""Which headers pass through a proxy: all but those that speak of one connection (RFC 9110, 7.6.1)."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import CIMultiDict

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

OF_THE_REQUEST = frozenset({"accept-encoding", "content-encoding", "content-length", "expect", "host"})
"""Not passed on. A body was read, and so unpacked; answers stay unpacked, since a compressor would hold events back."""

OF_THE_ANSWER = frozenset({"content-length", "date", "server"})


def to_worker(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of a request as its worker gets them."""
    return _passed(headers, OF_THE_REQUEST)


def to_client(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of an answer as its client gets them."""
    return _passed(headers, OF_THE_ANSWER)


def _passed(headers: Mapping[str, str], others: frozenset[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    kept = [
        (name, value)
        for name, value in headers.items()
        if (low := name.lower()) not in HOP_BY_HOP and low not in others and low not in named
    ]
    return CIMultiDict(kept)
