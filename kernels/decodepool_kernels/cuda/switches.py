"""Attention's switches (window, sinks, soft cap) as its programs take them: sources/switches.cuh in Python."""

from __future__ import annotations

import ctypes

from decodepool_kernels.graph import Attention

LOG2_E = 1.4426950408889634
"""Scores are in units of log2 e."""
FOLD_DIMS = 128
"""Dims that a warp folds of a row's chunks."""


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


def fold_defines(op: Attention) -> dict[str, int]:
    """Return what the programs that fold a row's chunks know, as defines: the switches that they share with attention,
    and the most heads that a warp's dims touch, whose tables it keeps.
    """
    head_dim = op.out.width // op.heads
    firsts = range(0, FOLD_DIMS * head_dim, FOLD_DIMS)
    heads = max((first + FOLD_DIMS - 1) // head_dim - first // head_dim + 1 for first in firsts)
    return {"FOLD_HEADS": heads, **switch_defines(op)}
