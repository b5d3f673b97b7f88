"""A team of threads that runs one compiled program without the GIL: members wait on a semaphore, and meet at barriers
between operations.

Nothing here depends on arithmetic: who computes an output element never changes its bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from decodepool_kernels.cpu.jit import compiled, intrinsic, types
from decodepool_kernels.cpu.vector import ADDRESS, I64

SPINS_BEFORE_YIELD = 4096
"""About 50 us of waiting; past that the missing member has lost its core, and spinning on keeps it away."""

sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


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
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

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


@compiled
def barrier(arrivals: int, target: int) -> None:
    """Wait until the counter at address `arrivals` reaches `target`; counts the caller in."""
    atomic_add(arrivals, 1)
    spins = 0
    while atomic_load(arrivals) < target:
        spin_hint()
        spins += 1
        if spins >= SPINS_BEFORE_YIELD:
            sched_yield()


@compiled
def share(count: int, member: int, members: int) -> Any:
    """Return the half-open range of items that is one member's."""
    return count * member // members, count * (member + 1) // members
