"""Where to listen: what cannot be is told with the host's name, in words."""

from __future__ import annotations

import errno
import os
import re
import socket

import pytest
from decodepool_web.sockets import listening_socket


def test_a_free_port_is_listened_on() -> None:
    with listening_socket("127.0.0.1", 0) as made, socket.create_connection(made.getsockname(), 5):
        pass


def test_a_family_that_the_machine_does_not_have_is_told_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refused)
    with pytest.raises(OSError, match=r"^cannot listen on ::1:8080: Address family not supported by protocol$"):
        listening_socket("::1", 8080)


@pytest.mark.parametrize("host", ["no..host", f"{'n' * 64}.host"])
def test_a_name_that_can_be_no_hosts_is_told(host: str) -> None:
    with pytest.raises(OSError, match=f"^'{re.escape(host)}' is no host$"):
        listening_socket(host, 0)


def test_a_port_that_is_taken_is_told_with_the_host() -> None:
    with listening_socket("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use$"):
            listening_socket("127.0.0.1", port)
