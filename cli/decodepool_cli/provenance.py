"""Where a measurement comes from: the machine, the code, the command, the day."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from decodepool_sizing.host import usable_cores
from decodepool_sizing.version import release

UNKNOWN = "unknown"
COMMIT_VARIABLE = "DECODEPOOL_COMMIT"
"""Names the commit where there is no checkout: in an image, or where the sources alone were copied."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a figure depends on beside the code."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str


def machine() -> Machine:
    """Describe this machine; `cores` are those that this process may use."""
    return Machine(
        cpu=_cpu_model(Path("/proc/cpuinfo")),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def cpu_facts() -> dict[str, str | int]:
    """Return what figures of the CPU engine depend on beside the machine: the instructions that its kernels use."""
    from decodepool_kernels.cpu.features import HOST_ISA  # noqa: PLC0415 - a GPU is measured without the compiler

    return {"kernel_isa": HOST_ISA}


def provenance(device: Mapping[str, str | int] | None = None) -> dict[str, Any]:
    """Return machine with the facts of its device (the CPU's by default), commit, version, command and date as JSON has
    them.
    """
    return {
        "machine": {**asdict(machine()), **(cpu_facts() if device is None else device)},
        "commit": os.environ.get(COMMIT_VARIABLE) or commit(Path(__file__)),
        "decodepool": release(),
        "command": " ".join([_program(), *map(_shown, sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _program() -> str:
    """Return how this program was called: by its name, or as a module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and sys.argv[0].endswith(".py"):
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return Path(sys.argv[0]).name


def commit(source: Path) -> str:
    """Return the commit of the checkout that tracks a source file, with `-dirty` if anything tracked has changed since.

    `unknown` outside of one: a checkout that merely holds an installed copy does not track it.
    """
    folder = source.resolve().parent
    try:
        _git(folder, "ls-files", "--error-unmatch", source.name)
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "HEAD") + ("-dirty" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _shown(word: str) -> str:
    """Quote a word of a command line, with the user's home as `~`: it is nobody else's."""
    home = f"{Path.home()}/"
    return f"~/{shlex.quote(word.removeprefix(home))}" if word.startswith(home) else shlex.quote(word)


def short(name: str) -> str:
    """Return a commit's name as people write it, its mark kept."""
    digest, dash, mark = name.partition("-")
    return digest[:12] + dash + mark


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - a fixed command
    return done.stdout.strip()


def _cpu_model(cpuinfo: Path) -> str:
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
