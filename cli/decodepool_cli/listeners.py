"""Where to listen is decided before anything is started: a port that is taken is told at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from decodepool_web.sockets import listening_socket

from decodepool_cli.faults import bad_input


def listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; bad input where this machine has no such address, or the port is taken."""
    try:
        return listening_socket(host, port)
    except OSError as error:
        raise bad_input(str(error)) from None


@contextmanager
def listeners(host: str, first_port: int, count: int) -> Iterator[list[socket.socket]]:
    """Hold `count` sockets that listen on consecutive ports, all of them or none, for the time of a `with`."""
    with ExitStack() as held:
        yield [held.enter_context(listener(host, first_port + index)) for index in range(count)]
