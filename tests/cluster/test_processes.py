"""Processes that outlive the command that started them, and are known by their PID files."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from decodepool_cluster.linux import wait_until
from decodepool_cluster.processes import Processes

LISTENS_WITHOUT_ITS_FIRST_THREAD = """
import ctypes, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=[600]).start()
print(listener.getsockname()[1], flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
"""60 is exit(2), which ends one thread. So looks a killed process whose other threads take their time."""


def listening(processes: Processes, name: str) -> int:
    """Start the program above, grandchild of nobody here; return its port once its first thread is a zombie."""
    processes.spawn(name, [sys.executable, "-c", LISTENS_WITHOUT_ITS_FIRST_THREAD], os.environ)
    wait_until(lambda: processes.log(name).read_text().endswith("\n"), "its port")
    stat = Path(f"/proc/{processes.pid(name)}/stat")
    wait_until(lambda: ") Z " in stat.read_text(), "its first thread to end")
    return int(processes.log(name).read_text())


def test_a_process_is_there_until_its_last_thread_is_gone(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    port = listening(processes, "it")
    assert processes.is_alive("it")
    processes.kill("it")
    assert not processes.is_alive("it")
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_a_process_that_ended_is_not_alive(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.spawn("it", ["true"], os.environ)
    wait_until(lambda: not processes.is_alive("it"), "its end")
    assert processes.names() == ["it"]
    processes.kill("it")
    assert processes.names() == []


def test_another_process_of_the_same_pid_is_not_it(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.spawn("it", ["sleep", "60"], os.environ)
    try:
        assert processes.is_alive("it")
        pid, started = (tmp_path / "pid" / "it").read_text().split()
        (tmp_path / "pid" / "other").write_text(f"{pid} {int(started) + 1}")
        assert not processes.is_alive("other")
        processes.kill("other")
        time.sleep(0.1)
        assert processes.is_alive("it"), "whoever has the PID now is left alone"
    finally:
        processes.kill("it")
