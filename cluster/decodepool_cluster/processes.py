"""Processes that outlive the command that started them; a file each tells any later command the PID."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from decodepool_cluster import linux
from decodepool_cluster.linux import start_time, wait_until


class Processes:
    """The processes of one folder: `pid/NAME` has the PID and start time, `log/NAME.log` the output."""

    def __init__(self, home: Path) -> None:
        self.pids = home / "pid"
        self.logs = home / "log"

    def names(self) -> list[str]:
        """Return what was started and not killed since, dead or alive."""
        return sorted(file.name for file in self.pids.glob("*"))

    def spawn(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a process in a session of its own."""
        for folder in (self.pids, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawnp(command[0], command, environment, file_actions=actions, setsid=True)
        (self.pids / name).write_text(f"{pid} {start_time(pid)}")

    def log(self, name: str) -> Path:
        """Return where a process's output goes."""
        return self.logs / f"{name}.log"

    def pid(self, name: str) -> int:
        """Return a process's PID. FileNotFoundError if it was never started, or was killed."""
        return int((self.pids / name).read_text().split()[0])

    def is_alive(self, name: str) -> bool:
        """Tell whether a process runs; another one that took its PID over does not count."""
        try:
            pid, started = (self.pids / name).read_text().split()
        except FileNotFoundError:
            return False
        return linux.is_alive(f"{pid}.{started}")

    def kill(self, name: str) -> None:
        """End a process at once and wait until it is gone."""
        if self.is_alive(name):
            pid = self.pid(name)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self.is_alive(name), f"{name} to end", every_seconds=0.02)
            with suppress(ChildProcessError):  # another process's child is not ours to bury
                os.waitpid(pid, 0)
        (self.pids / name).unlink(missing_ok=True)

    def freeze(self, name: str) -> None:
        """Stop a process in its tracks: its connections stay open and silent."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Have a frozen process go on."""
        os.kill(self.pid(name), signal.SIGCONT)
