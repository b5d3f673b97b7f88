"""Who may use the API beside whoever has a key: where that was asked for, only who is on this machine."""

from __future__ import annotations

from ipaddress import ip_address

from aiohttp import web
from decodepool_sizing.api_errors import ApiError


def check_local(request: web.BaseRequest) -> None:
    """Raise `ApiError` 403 unless the request comes from this machine, or from this pod."""
    transport = request.transport
    peer, here = (transport.get_extra_info(name) if transport else None for name in ("peername", "sockname"))
    if not (peer and here and is_from_here(str(peer[0]), str(here[0]))):
        raise ApiError("not_local", "this worker serves the applications of its own machine or pod alone")


def is_from_here(peer: str, here: str) -> bool:
    """Tell whether a connection's other end is on this machine, given both addresses."""
    return peer == here or ip_address(peer.partition("%")[0]).is_loopback
