"""From a model's shape and a device's memory to the sessions a worker holds. All integers, all bytes.

    usable    = weights + workspace + reserve + cache + unused
    reserve   = sessions x session        what admitted sessions may fill to the last token; never given to a cache
    cache     = what is left, in whole pages: closed sessions kept for prefix reuse, given back on demand

An explicit `cache_reserve_bytes` is the amount that caches must leave to sessions, and wins over the computed
reserve: at most what it holds is planned as sessions, the cache gets what is beyond it, and a remainder too small for
a session stays unused. Where the sessions asked for do not fit into it, or it does not fit into the device, the plan
is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from decodepool_sizing.devices import DeviceMemory, GpuCores, memory_bytes_of
from decodepool_sizing.errors import BadDemand, CannotFit, ContextTooLong
from decodepool_sizing.gpu_workspace import gpu_workspace_bytes
from decodepool_sizing.kv import PAGE_TOKENS, KVType, pages
from decodepool_sizing.matrix_types import UNIFORM, StepTypes
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.session_bytes import page_bytes, session_bytes
from decodepool_sizing.shape import ModelShape
from decodepool_sizing.workspace import MAX_SESSIONS, STEP_ROWS, workspace_bytes

MIB = 1 << 20


class LimitedBy(StrEnum):
    """What keeps a plan from holding one session more."""

    MEMORY = "memory"
    CACHE_RESERVE = "cache reserve"
    SESSIONS_ASKED = "sessions asked for"
    MAX_SESSIONS = "sessions of a worker"


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A plan that fits. `weight + workspace + reserve + cache + unused == usable`, in bytes; `page_count` counts
    reserve and cache.
    """

    device: DeviceMemory
    context_tokens: int
    kv_type: KVType
    max_step_rows: int
    sessions: int
    weight_bytes: int
    workspace_bytes: int
    session_bytes: int
    reserve_bytes: int
    cache_bytes: int
    unused_bytes: int
    page_bytes: int
    pages_per_session: int
    page_count: int
    limited_by: LimitedBy

    @property
    def usable_bytes(self) -> int:
        """What the parts are parts of."""
        return self.device.usable_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a device: everything of a plan but the device itself. `cores` are those that the GPU may have,
    none where a CPU is asked. `types` decide a little of a GPU's workspace.
    """

    shape: ModelShape
    weight_bytes: int
    context_tokens: int
    kv_type: KVType = KVType.F16
    sessions: int | None = None
    cache_reserve_bytes: int | None = None
    max_step_rows: int = STEP_ROWS["cpu"]
    cores: tuple[GpuCores, ...] = ()
    types: StepTypes = UNIFORM

    def on(self, device: DeviceMemory) -> Demand:
        """Return what is asked of one device."""
        return replace(self, cores=device.cores)

    @property
    def max_sessions(self) -> int:
        """The most sessions that every step has a row for."""
        return min(MAX_SESSIONS, self.max_step_rows)

    @property
    def session_bytes(self) -> int:
        """Bytes of one session."""
        return session_bytes(self.shape, self.context_tokens, self.kv_type)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of one step."""
        if not self.cores:
            return workspace_bytes(self.shape, self.max_step_rows)
        sizes = (self.context_tokens, self.max_step_rows, self.types)
        return max(gpu_workspace_bytes(self.shape, cores, *sizes) for cores in self.cores)

    @property
    def fixed_bytes(self) -> int:
        """Bytes taken before the first session."""
        return self.weight_bytes + self.workspace_bytes


def plan_capacity(demand: Demand, device: DeviceMemory) -> CapacityPlan:
    """Plan as many sessions as fit, or as many as were asked for.

    CannotFit where not even one session, or not all that were asked for, fit: with the bytes needed, those there are,
    and what would fit. ContextTooLong past the model's own context. BadDemand for numbers that mean nothing.
    """
    check_context(demand.shape, demand.context_tokens)
    _check_numbers(demand)
    demand = demand.on(device)
    room = device.usable_bytes - demand.fixed_bytes
    reserve = demand.cache_reserve_bytes
    if reserve is not None and reserve > max(0, room):
        raise _cannot_hold_reserve(demand, device, reserve)
    held = room if reserve is None else reserve
    fitting = max(0, held) // demand.session_bytes
    if fitting < (demand.sessions or 1):
        raise _cannot_hold_sessions(demand, device, room)
    return _plan(demand, device, fitting, room)


def check_context(shape: ModelShape, context_tokens: int) -> None:
    """Refuse a context that the model was not made for, or that is none. The file's rope scaling may stretch its own
    number.
    """
    if context_tokens < 1:
        raise BadDemand(f"a context of {context_tokens} tokens: at least 1 is needed")
    if context_tokens > shape.max_context_tokens:
        raise ContextTooLong(f"a context of {context_tokens} tokens, but the model's own is {shape.max_context_tokens}")


def _check_numbers(demand: Demand) -> None:
    if demand.sessions is not None and not 1 <= demand.sessions <= demand.max_sessions:
        raise BadDemand(f"{demand.sessions} sessions: a worker holds 1 to {demand.max_sessions}")
    if demand.cache_reserve_bytes is not None and demand.cache_reserve_bytes < 1:
        raise BadDemand(f"a cache reserve of {demand.cache_reserve_bytes} bytes: at least 1 is needed")


def _plan(demand: Demand, device: DeviceMemory, fitting: int, room: int) -> CapacityPlan:
    sessions = min(fitting, demand.max_sessions, demand.sessions or fitting)
    reserve_bytes = sessions * demand.session_bytes
    page = page_bytes(demand.shape, demand.kv_type)
    left = room - max(reserve_bytes, demand.cache_reserve_bytes or 0)
    cached_pages = left // page if page else 0
    return CapacityPlan(
        device=device,
        context_tokens=demand.context_tokens,
        kv_type=demand.kv_type,
        max_step_rows=demand.max_step_rows,
        sessions=sessions,
        weight_bytes=demand.weight_bytes,
        workspace_bytes=demand.workspace_bytes,
        session_bytes=demand.session_bytes,
        reserve_bytes=reserve_bytes,
        cache_bytes=cached_pages * page,
        unused_bytes=room - reserve_bytes - cached_pages * page,
        page_bytes=page,
        pages_per_session=pages(demand.context_tokens),
        page_count=sessions * pages(demand.context_tokens) + cached_pages,
        limited_by=_limit(demand, fitting, sessions),
    )


def _limit(demand: Demand, fitting: int, sessions: int) -> LimitedBy:
    if sessions == demand.sessions:
        return LimitedBy.SESSIONS_ASKED
    if sessions < fitting:
        return LimitedBy.MAX_SESSIONS
    return LimitedBy.MEMORY if demand.cache_reserve_bytes is None else LimitedBy.CACHE_RESERVE


def _cannot_hold_sessions(demand: Demand, device: DeviceMemory, room: int) -> CannotFit:
    sessions, each = demand.sessions or 1, demand.session_bytes
    wanted = f"1 session of {demand.context_tokens} tokens needs"
    if sessions > 1:
        wanted = f"{sessions} sessions of {demand.context_tokens} tokens need"
    reserve, needed = demand.cache_reserve_bytes, sessions * each
    if reserve is None or needed > room:
        needed, available = demand.fixed_bytes + needed, device.usable_bytes
        there = f"{device.name} has {exact_bytes(available)} usable"
        message = f"{wanted} {exact_bytes(needed)} with weights and workspace, but {there}"
        return CannotFit(message, needed_bytes=needed, available_bytes=available, advice=advise(demand, available))
    message, advice = (
        f"{wanted} {exact_bytes(needed)}, but the cache reserve is {exact_bytes(reserve)}",
        f"a reserve of {exact_bytes(needed)} fits",
    )
    return CannotFit(message, needed_bytes=needed, available_bytes=reserve, advice=advice)


def _cannot_hold_reserve(demand: Demand, device: DeviceMemory, reserve: int) -> CannotFit:
    needed = demand.fixed_bytes + reserve
    claim = f"a cache reserve of {exact_bytes(reserve)} needs {exact_bytes(needed)} with weights and workspace"
    message = f"{claim}, but {device.name} has {exact_bytes(device.usable_bytes)} usable"
    available = device.usable_bytes
    return CannotFit(message, needed_bytes=needed, available_bytes=available, advice=_other_reserve(demand, available))


def advise(demand: Demand, usable_bytes: int) -> str:
    """Say what would fit into `usable_bytes` instead of what was asked."""
    fits = [
        f"{count} session{'s' if count > 1 else ''} of {tokens} tokens"
        for count, tokens in _alternatives(demand, usable_bytes)
    ]
    if fits:
        return f"would fit: {', or '.join(fits)}"
    if demand.cache_reserve_bytes is not None:
        return _other_reserve(demand, usable_bytes)
    if usable_bytes > demand.fixed_bytes:
        return "no session of any length fits: a smaller quantisation or a larger device is needed"
    device_bytes = memory_bytes_of("cuda" if demand.cores else "cpu", _needed_bytes(demand, 1))
    whole = f"{-(-device_bytes // MIB)}MiB of memory, what the worker itself takes included"
    return f"not even the weights and workspace fit: {whole}, would hold one session"


def _other_reserve(demand: Demand, usable_bytes: int) -> str:
    """Say which cache reserve would fit instead of the one that was asked for, or what would without any."""
    most = usable_bytes - demand.fixed_bytes
    if most >= (demand.sessions or 1) * demand.session_bytes:
        return f"a reserve of at most {exact_bytes(most)} fits"
    return f"without a cache reserve: {advise(replace(demand, cache_reserve_bytes=None), usable_bytes)}"


def _alternatives(demand: Demand, usable_bytes: int) -> list[tuple[int, int]]:
    """As many sessions of the context asked for as fit, and the longest context of which one, or all that were asked
    for, fit.
    """
    found, room = [], max(0, usable_bytes - demand.fixed_bytes)
    if demand.cache_reserve_bytes is not None:
        room = demand.cache_reserve_bytes if demand.cache_reserve_bytes <= room else 0
    same = min(room // demand.session_bytes, demand.max_sessions)
    if same:
        found.append((same, demand.context_tokens))
    for count in {demand.sessions or 1, 1}:
        longest = _longest_context(demand, count, usable_bytes)
        if longest and longest != demand.context_tokens:
            found.append((count, longest))
    return sorted(set(found), reverse=True)


def _longest_context(demand: Demand, sessions: int, usable_bytes: int) -> int:
    """The longest context, in whole pages where it is longer than one, of which so many sessions fit; 0 for none."""
    most = demand.shape.max_context_tokens
    low, high = 0, pages(most)
    while low < high:
        middle = (low + high + 1) // 2
        asked = replace(demand, context_tokens=min(middle * PAGE_TOKENS, most))
        low, high = (middle, high) if _fits(asked, sessions, usable_bytes) else (low, middle - 1)
    return min(low * PAGE_TOKENS, most)


def _fits(demand: Demand, sessions: int, usable_bytes: int) -> bool:
    held = sessions * demand.session_bytes
    reserve = held if demand.cache_reserve_bytes is None else demand.cache_reserve_bytes
    return held <= reserve <= usable_bytes - demand.fixed_bytes


def _needed_bytes(demand: Demand, sessions: int) -> int:
    return demand.fixed_bytes + sessions * demand.session_bytes
