"""Where compiled code is kept, so that only a machine's first start compiles: a folder in the user's cache directory,
named after these sources, where they lie and the CPU.

numba by itself looks at one file's time stamp; here any change to any kernel is another folder. A folder is used once
it is sealed: its seal lists every file with its digest, so that half of a compile, or a file that was damaged since, is
compiled anew and not read.

An image may ship what its own build compiled, under the environment's `share/`: it serves the CPUs it was made for, as
a copy, since numba reads code only where it could write.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from decodepool_sizing import layouts
from decodepool_sizing.cache_folder import cache_folder
from llvmlite import binding

SEAL = "seal.json"
SHIPPED = Path("share", "decodepool", "kernels")
"""Under the environment's prefix; `XDG_CACHE_HOME=PREFIX/share` while compiling fills it."""
KEPT_VERSIONS = 4
"""Versions of the kernels whose code is kept: what changed last may change back."""


def kernel_digest() -> str:
    """Return a digest of these sources, of the layouts that are compiled into them, and of the compiler: numba, and the
    LLVM that llvmlite brings.
    """
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')}".encode())
    for source in (*sorted(Path(__file__).parent.glob("*.py")), Path(layouts.__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def kernel_cache_directory() -> Path:
    """Return the folder for this copy of the kernels, whether or not it exists. RuntimeError for a user without a home.

    numba's code belongs to a source file's path and time, and to a CPU: two copies of the sources share nothing.
    """
    entry = Path(__file__).with_name("program.py")
    cpu = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    place = hashlib.sha256(f"{entry} {entry.stat().st_mtime_ns} {cpu}".encode()).hexdigest()[:8]
    return cache_folder("kernels") / f"{kernel_digest()}-{place}"


def copy_shipped(folder: Path) -> bool:
    """Fill a folder from what this environment ships for these sources and this CPU; tell whether it does.

    Times are kept, for numba's sake.
    """
    shipped = Path(sys.prefix) / SHIPPED / folder.name
    if not is_sealed(shipped):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(shipped, folder)
    return True


def is_sealed(folder: Path) -> bool:
    """Tell whether a folder holds what its seal says, to the byte."""
    try:
        return bool(json.loads((folder / SEAL).read_text()) == _contents(folder))
    except (OSError, ValueError):
        return False


def seal(folder: Path) -> None:
    """Declare a folder's contents whole."""
    aside = folder / f"{SEAL}.{os.getpid()}"
    aside.write_text(json.dumps(_contents(folder)))
    aside.replace(folder / SEAL)


def _contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(SEAL))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that of several starts one compiles and the others wait for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget_old_versions(folders: Path) -> None:
    """Remove all but the latest versions."""
    versions = sorted((path for path in folders.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in versions[:-KEPT_VERSIONS]:
        shutil.rmtree(folder, ignore_errors=True)
        (folders / f"{folder.name}.lock").unlink(missing_ok=True)
