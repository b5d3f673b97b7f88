"""Kernels compiled once a machine: images are kept in the user's cache by content, that is by sources, options, NVRTC's
version and architecture.

A GPU newer than NVRTC gets PTX for the newest architecture that NVRTC knows, which the driver compiles.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from decodepool_kernels.cuda import image_cache, nvrtc
from decodepool_kernels.cuda.errors import CannotCompile
from decodepool_kernels.cuda.registry import HOPPER, Defines

SOURCES = Path(__file__).parent / "sources"
OLDEST_ARCHITECTURE = 80
OPTIONS = ("--std=c++17", "--fmad=false")
"""No contraction: what is fused is written fused, so that every variant of a kernel rounds alike."""


@cache
def headers() -> dict[str, bytes]:
    """Return every header by its name."""
    return {path.name: path.read_bytes() for path in sorted(SOURCES.glob("*.cuh"))}


@cache
def sources_digest() -> str:
    """Return a digest of every source and of the compiler: what a stream's bits depend on beside weights and GPU."""
    digest = hashlib.sha256(nvrtc.version().encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def target_of(capability: int) -> str:
    """Return NVRTC's name of what to compile for on a GPU of a compute capability such as 90."""
    if capability < OLDEST_ARCHITECTURE:
        raise CannotCompile(
            f"compute capability {capability / 10} is older than {OLDEST_ARCHITECTURE / 10}, "
            "the oldest that the kernels run on"
        )
    known = nvrtc.architectures()
    if capability == 90:
        return HOPPER
    return f"sm_{capability}" if capability in known else f"compute_{max(arch for arch in known if arch <= capability)}"


def is_ptx(target: str) -> bool:
    """Tell whether NVRTC makes PTX for a target, which the driver compiles."""
    return target.startswith("compute_")


def image(source: str, defines: Defines, target: str, *, anew: bool = False) -> bytes:
    """Return the machine code (or PTX) of one source with its defines: as it was kept, or compiled now (`anew`: in any
    case) and kept.
    """
    text = (SOURCES / source).read_bytes()
    options = (
        f"--gpu-architecture={target}",
        *OPTIONS,
        *(f"-D{name}={value}" for name, value in sorted(defines.items())),
    )
    key = hashlib.sha256(repr((nvrtc.version(), options, source)).encode() + text)
    for name, header in headers().items():
        key.update(name.encode() + header)
    version, name = sources_digest(), f"{key.hexdigest()[:32]}.image"
    known = None if anew else image_cache.kept(version, name)
    if known is not None:
        return known
    compiled = nvrtc.compiled(source, text, headers(), options)
    image_cache.keep(version, name, compiled)
    return compiled
