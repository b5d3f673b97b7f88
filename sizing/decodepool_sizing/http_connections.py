"""Connections that end in time, whatever a server drips, and that go to no address which is not meant to be read."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from decodepool_sizing.errors import BadModelFile

METADATA_SERVICES = frozenset({"fd00:ec2::254", "100.100.100.200", "168.63.129.16"})
"""Where clouds tell a machine its secrets, beside the link-local address that most of them use."""


@dataclass(frozen=True)
class Terms:
    """What a reading is held to: when all of it is over (monotonic seconds), and whether it may go to this machine and
    to addresses that only its own link knows.
    """

    until: float | None = None
    local_addresses: bool = True

    def left_seconds(self, wait_seconds: float) -> float:
        """Return how long to wait for bytes; TimeoutError where the time is over."""
        if self.until is None:
            return wait_seconds
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server was too slow for the time there is")
        return min(wait_seconds, left)

    def check(self, address: str) -> None:
        """BadModelFile for an address that is not read from. Which it is, is not told: it may be nobody's business."""
        if not self.local_addresses and is_local(address):
            raise BadModelFile("cannot be fetched: nothing is read from loopback and link-local addresses")


def is_local(address: str) -> bool:
    """Say whether an address is of this machine, of its link, or of a cloud's metadata service."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback or found.is_link_local or found.is_unspecified or str(found) in METADATA_SERVICES


def handlers(terms: Terms) -> tuple[urllib.request.BaseHandler, ...]:
    """Return urllib's handlers for connections on these terms, redirects included."""

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(_on_terms, http.client.HTTPConnection, terms), req)

    class Encrypted(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(_on_terms, http.client.HTTPSConnection, terms), req)

    return Plain(), Encrypted()


def _on_terms(made: type[http.client.HTTPConnection], terms: Terms, *args: Any, **kwargs: Any) -> Any:
    connection: Any = made(*args, **kwargs)
    connection._create_connection = partial(_connect, terms)
    connection.response_class = partial(_TimelyResponse, terms)
    return connection


def _connect(terms: Terms, where: tuple[str, int], timeout: float, *_: Any) -> socket.socket:
    """Connect to the first address of a host that answers."""
    addresses = [str(found[4][0]) for found in socket.getaddrinfo(*where, type=socket.SOCK_STREAM)]
    for address in addresses:
        terms.check(address)
    fault: OSError = OSError("the host has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, where[1]), terms.left_seconds(timeout))
        except OSError as error:
            fault = error
    raise fault


class _TimelyResponse(http.client.HTTPResponse):
    """An answer whose every read, of headers too, ends with the time there is."""

    def __init__(self, terms: Terms, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        assert isinstance(self.fp, io.BufferedReader)  # what a socket makes of itself
        self.fp = io.BufferedReader(_Timely(self.fp.detach(), sock, terms))


class _Timely(io.RawIOBase):
    def __init__(self, raw: Any, sock: socket.socket, terms: Terms) -> None:
        super().__init__()
        self._raw, self._sock, self._terms = raw, sock, terms
        self._wait_seconds: float | None = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._wait_seconds is not None:
            self._sock.settimeout(self._terms.left_seconds(self._wait_seconds))
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()
