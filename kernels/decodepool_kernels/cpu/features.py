"""Which instructions this host has. They choose speed, never bits."""

from __future__ import annotations

import platform

from llvmlite import binding

BASELINE_X86 = ("avx2", "fma", "f16c")


def host_isa() -> str:
    """Return the name of the fastest integer dot product here, a row of `dot.DOTS`.

    Raises OSError on an x86 older than 2013: without FMA every rounding would go through a library call.
    """
    if platform.machine() not in {"x86_64", "AMD64"}:
        return "generic"
    features = binding.get_host_cpu_features()
    missing = [name for name in BASELINE_X86 if not features.get(name)]
    if missing:
        raise OSError(
            f"this CPU lacks {', '.join(missing)}: the CPU engine needs x86-64-v3 (Haswell, Zen or newer) or aarch64"
        )
    return "vnni" if features.get("avx512vnni") and features.get("avx512bw") else "avx2"


HOST_ISA = host_isa()
