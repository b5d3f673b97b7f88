"""Attention's switches (window, sinks, soft cap) as its programs take them: sources/switches.cuh in Python."""

from __future__ import annotations

import ctypes

from decodepool_kernels.graph import Attention

LOG2_E = 1.4426950408889634
"""Scores are in units of log2 e."""


class Switches(ctypes.Structure):
    """What attention's programs take beside their operands; `cap` in units of log2 e."""

    _fields_ = (
        ("sinks", ctypes.c_void_p),
        ("window", ctypes.c_int),
        ("cap", ctypes.c_float),
        ("inverse_cap", ctypes.c_float),
    )


def switches_of(op: Attention, sinks: ctypes.c_void_p) -> Switches:
    """Return a layer's switches; `sinks` is where they lie on the device, 0 where it has none."""
    cap = (op.soft_cap or 0.0) * LOG2_E
    return Switches(sinks, op.window or 0, cap, 1 / cap if cap else 0.0)


def switch_defines(op: Attention) -> dict[str, int]:
    """Return the switches that every program of attention knows, as defines."""
    return {"WINDOW": int(op.window is not None), "SINKS": int(op.sinks is not None)}
