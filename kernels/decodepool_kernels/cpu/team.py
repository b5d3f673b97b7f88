"""How threads share one step without the GIL: they claim pieces of an operation, count what is done, and wait for each
other only where an operation needs results that somebody still works on.

Pieces are claimed, not dealt out: a thread that loses its core to somebody holds up the others for the piece it is in,
not for its whole share, and one that has not woken yet holds up nobody. Nothing here depends on arithmetic: who
computes an element never changes its bits.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, I8, I32, I64

SPINS_BEFORE_SLEEP = 1024
"""Some 20 us of waiting. Past that whoever is waited for has lost its core, and spinning on would spend this thread's
share of the cores too.
"""
PIECES_EACH = 2
"""Pieces of an operation for each member: more would even out better, and cost a claim each."""
STEP_AT, OPEN_AT, INSIDE_AT, SLEEPERS_AT = 0, 64, 128, 192
"""Where, in the team's shared words, are: the steps begun; whether one is open; how many followers are in it; and how
many members sleep. Each on a cache line of its own.
"""
SHARED_BYTES = 256
MXCSR_DEFAULT = 0x1F80
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 98)
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
EVERYBODY = 0x7FFFFFFF

system_call = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@intrinsic
def atomic_add(typing_context: Any, where: Any, amount: Any) -> Any:
    """Add to the int64 at an address; return what it held."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(ADDRESS, types.int64), generate


@intrinsic
def atomic_load(typing_context: Any, where: Any) -> Any:
    """Return the int64 at an address as another thread last stored it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(ADDRESS), generate


@intrinsic
def spin_hint(typing_context: Any) -> Any:
    """Tell the core that this is a spin loop, where it has a way to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if builder.module.triple.startswith("x86_64"):
            signature_type = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(builder.module.globals.get(name) or ir.Function(builder.module, signature_type, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def use_default_rounding(typing_context: Any) -> Any:
    """Round to nearest and keep denormals in this thread, whatever a library has set: bits would depend on it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if builder.module.triple.startswith("x86_64"):
            word = cgutils.alloca_once_value(builder, I32(MXCSR_DEFAULT))  # type: ignore[no-untyped-call]
            kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer()])
            name = "llvm.x86.sse.ldmxcsr"
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            builder.call(function, [builder.bitcast(word, I8.as_pointer())])
        return context.get_dummy_value()

    return types.void(), generate


@compiled
def wake(shared: int, where: int) -> None:
    """Wake those who sleep until the word at `where` changes, if anybody sleeps at all."""
    if atomic_load(shared + SLEEPERS_AT) > 0:
        system_call(SYS_FUTEX, where, FUTEX_WAKE_PRIVATE, EVERYBODY, 0, 0, 0)


@compiled
def sleep_while(where: int, seen: int) -> None:
    """Sleep until woken, unless the word at `where` is no longer `seen`: Linux compares its low half as it goes to
    sleep.
    """
    system_call(SYS_FUTEX, where, FUTEX_WAIT_PRIVATE, seen & 0xFFFFFFFF, 0, 0, 0)


@compiled
def wait_for_count(shared: int, where: int, target: int) -> None:
    """Wait until the count at `where` is at least `target`.

    A sleeper says so before it looks once more, and whoever counts looks for sleepers after counting: no wake-up is
    lost.
    """
    for _ in range(SPINS_BEFORE_SLEEP):
        if atomic_load(where) >= target:
            return
        spin_hint()
    atomic_add(shared + SLEEPERS_AT, 1)
    while True:
        seen = atomic_load(where)
        if seen >= target:
            break
        sleep_while(where, seen)
    atomic_add(shared + SLEEPERS_AT, -1)


@compiled
def begin_step(shared: int) -> None:
    """Open a step and wake the followers."""
    atomic_add(shared + OPEN_AT, 1)
    atomic_add(shared + STEP_AT, 1)
    system_call(SYS_FUTEX, shared + STEP_AT, FUTEX_WAKE_PRIVATE, EVERYBODY, 0, 0, 0)


@compiled
def end_step(shared: int) -> None:
    """Close the step and wait until every follower that was in it has left."""
    atomic_add(shared + OPEN_AT, -1)
    wait_for_count(shared, shared + INSIDE_AT, 0)


@compiled
def enter_step(shared: int) -> bool:
    """Go into the step if it is still open; while a follower is inside, `INSIDE_AT` counts below zero."""
    atomic_add(shared + INSIDE_AT, -1)
    if atomic_load(shared + OPEN_AT) > 0:
        return True
    leave_step(shared)
    return False


@compiled
def leave_step(shared: int) -> None:
    """Say that a follower is out."""
    atomic_add(shared + INSIDE_AT, 1)
    wake(shared, shared + INSIDE_AT)


@compiled
def next_step(shared: int, seen: int) -> Any:
    """Sleep until a step begins after `seen` steps; return the steps begun."""
    while True:
        begun = atomic_load(shared + STEP_AT)
        if begun != seen:
            return begun
        sleep_while(shared + STEP_AT, seen)
