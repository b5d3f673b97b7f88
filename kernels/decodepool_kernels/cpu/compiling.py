"""Compiling in a process of its own, which takes the compiler's memory with it when it ends: 200 MiB, in no plan.

Run as a module it is that process. An image whose build calls `compile_here` starts without compiling.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading

import numpy as np

from decodepool_kernels.cpu import cache, jit
from decodepool_kernels.cpu.buffers import address, aligned_bytes
from decodepool_kernels.cpu.records import RECORD_WORDS, STOP

logger = logging.getLogger("decodepool.kernels")


def compile_apart() -> None:
    """Make compiled code ready to be loaded: compile in a child process what no build and no start has compiled yet.

    To be called before `program` is imported. Where code cannot be kept, the first step compiles in this process.
    """
    try:
        folder = cache.kernel_cache_directory()
        with cache.alone(folder):
            if not cache.is_sealed(folder) and not cache.copy_shipped(folder):
                _compile_in_child()
        if cache.is_sealed(folder):
            return jit.keep_code_in(folder)
        reason = "compiling failed"
    except (OSError, RuntimeError) as error:
        reason = str(error)
    return logger.warning("compiled kernels cannot be kept, so each start compiles for about half a minute: %s", reason)


def _compile_in_child() -> None:
    logger.warning("compiling the kernels, once on this machine: about half a minute")
    command = [sys.executable, "-P", "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:  # noqa: S603 - this very module
        try:
            child.wait()
        except BaseException:
            child.kill()
            raise


def compile_here() -> None:
    """Compile the program into an empty cache folder, by ending a team that has no step to run, and seal the folder."""
    folder = cache.kernel_cache_directory()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    jit.keep_code_in(folder)
    from decodepool_kernels.cpu.program import take_part  # noqa: PLC0415 - only now it is known where code is kept
    from decodepool_kernels.cpu.team import SHARED_BYTES  # noqa: PLC0415

    counts = np.zeros(8, np.int64)
    counts[STOP] = 1
    inputs = tuple(np.zeros(1, np.int32) for _ in range(8))
    shared, tallies = aligned_bytes(SHARED_BYTES), np.zeros(2, np.int64)
    records, reals = np.zeros((1, RECORD_WORDS), np.int64), np.zeros((1, 1), np.float64)
    take_part(records, reals, counts, inputs, address(shared), address(shared), tallies, 0, 1)
    cache.seal(folder)
    cache.forget_old_versions(folder.parent)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> None:
    """Be the child."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        compile_here()
    except OSError as error:
        sys.exit(f"compiled kernels cannot be kept: {error}")


if __name__ == "__main__":
    main()
