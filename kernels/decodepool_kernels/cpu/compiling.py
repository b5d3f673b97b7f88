"""Compiling in a process of its own, which takes the compiler's memory with it when it ends: 200 MiB, in no plan.

Run as a module it is that process; an image that runs it once starts without compiling.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from decodepool_kernels.cpu.buffers import address, aligned_bytes
from decodepool_kernels.cpu.cache import kernel_cache_directory
from decodepool_kernels.cpu.jit import IS_CACHED

logger = logging.getLogger("decodepool.kernels")

MARK = "compiled"
"""A file in the cache folder that says that everything is in it."""
KEPT_VERSIONS = 4
"""Versions of the kernels whose code is kept: what changed last may change back."""


def compile_apart() -> None:
    """Compile in a child process what this machine has not compiled yet. Where nothing can be kept this does nothing:
    the first step then compiles here.
    """
    if not IS_CACHED or (kernel_cache_directory() / MARK).exists():
        return
    logger.warning("compiling the kernels, once on this machine: about half a minute")
    command = [sys.executable, "-P", "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:  # noqa: S603 - this very module
        try:
            child.wait()
        except BaseException:
            child.kill()
            raise


def compile_here() -> None:
    """Compile the program, by ending a team that has no step to run, and leave the mark."""
    from decodepool_kernels.cpu.program import RECORD_WORDS, STOP, take_part  # noqa: PLC0415 - the child's own business
    from decodepool_kernels.cpu.team import SHARED_BYTES  # noqa: PLC0415

    counts = np.zeros(8, np.int64)
    counts[STOP] = 1
    inputs = tuple(np.zeros(1, np.int32) for _ in range(8))
    shared, tallies = aligned_bytes(SHARED_BYTES), np.zeros(2, np.int64)
    records, reals = np.zeros((1, RECORD_WORDS), np.int64), np.zeros((1, 1), np.float64)
    take_part(records, reals, counts, inputs, address(shared), address(shared), tallies, 0, 1)
    (kernel_cache_directory() / MARK).touch()


def forget_old_versions(folder: Path) -> None:
    """Remove the folders of all but the latest versions."""
    versions = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for version in versions[:-KEPT_VERSIONS]:
        shutil.rmtree(version, ignore_errors=True)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> None:
    """Be the child."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compile_here()
    forget_old_versions(kernel_cache_directory().parent)


if __name__ == "__main__":
    main()
