"""Sockets: a peer that vanishes without a word is noticed within 30 s.

What is set on a listening socket, every accepted connection inherits.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

BACKLOG = 1024
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)) if hasattr(
    socket, "TCP_KEEPIDLE"
) else ()  # fmt: skip
USER_TIMEOUT_MS = 30_000


def set_liveness(made: socket.socket) -> None:
    """Have the kernel give up a peer that has been silent for 30 s, be there data on the way to it or not."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound, listening TCP socket; port 0 takes a free one.

    Raises `OSError`, in words that name the host.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except UnicodeError:  # a label of the name is empty, or too long
        raise OSError(f"{host!r} is no host") from None
    except socket.gaierror as error:
        raise OSError(f"{host}: {error.strerror}") from None
    try:
        return _listening(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def _listening(made: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_liveness(made)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def inherited_socket(descriptor: int) -> socket.socket:
    """Return the listening socket that the parent process has made and passed on. Raises `OSError` where it is none."""
    return socket.socket(fileno=descriptor)


def is_loopback(made: socket.socket) -> bool:
    """Tell whether a listening socket is reached from this machine alone."""
    return ip_address(made.getsockname()[0]).is_loopback


def url_of(made: socket.socket) -> str:
    """Return where a listening socket, be it on every address, is reached from this machine."""
    host, port = made.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  compared, not bound
    return f"http://{host}:{port}"
