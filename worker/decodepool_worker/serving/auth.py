"""Who may use the API: who has a key out of a file, and where that was asked for, only who is on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from decodepool_sizing.api_errors import ApiError
from decodepool_sizing.api_keys import opens, parse_keys


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
            keys = parse_keys(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"{path}: {error}") from None
        if not keys:
            raise KeyFileError(f"{path}: no key in it")
        return cls(keys)

    def check(self, request: web.BaseRequest) -> None:
        """Raise `ApiError` 401 unless the request carries one of the keys as `Authorization: Bearer KEY`."""
        if self.keys and not opens(self.keys, request.headers.get("Authorization", "")):
            raise ApiError("invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY")


def check_local(request: web.BaseRequest) -> None:
    """Raise `ApiError` 403 unless the request comes from this machine, or from this pod."""
    transport = request.transport
    peer, here = (transport.get_extra_info(name) if transport else None for name in ("peername", "sockname"))
    if not (peer and here and is_from_here(str(peer[0]), str(here[0]))):
        raise ApiError("not_local", "this worker serves the applications of its own machine or pod alone")


def is_from_here(peer: str, here: str) -> bool:
    """Tell whether a connection's other end is on this machine, given both addresses."""
    return peer == here or ip_address(peer.partition("%")[0]).is_loopback
