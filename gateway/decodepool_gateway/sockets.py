"""Sockets: a peer that vanishes without a word is noticed within 30 s, and small events wait for nothing."""

from __future__ import annotations

import socket

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
    """Return a bound, listening TCP socket; port 0 takes a free one. Raises `OSError`, naming host and port.

    What is set on it, every accepted connection inherits.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise OSError(f"{host}: {error}") from None
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_liveness(made)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return made
