from __future__ import annotations

import re
from dataclasses import replace

import pytest
from decodepool_sizing.capacity import CapacityPlan, Demand, LimitedBy, plan_capacity
from decodepool_sizing.devices import ANY_CORES, PROCESS_BASE_BYTES, DeviceMemory, GpuCores, cpu_memory, gpu_memory
from decodepool_sizing.errors import CannotFit, ContextTooLong
from decodepool_sizing.gpu_names import find_gpu
from decodepool_sizing.gpus import GPUS
from decodepool_sizing.kv import PAGE_TOKENS, KVType
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.shape import read_shape
from decodepool_sizing.workspace import DRAW_BYTES, DRAWING_THREADS, MAX_SESSIONS, STEP_ROWS, workspace_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizing.models import MODELS, header_of

SHAPES = {name: read_shape(header_of(*model)) for name, model in MODELS.items()}
LLAMA = SHAPES["Llama-3.1-8B"]
WEIGHTS = 8 << 30


def demand(**changes: object) -> Demand:
    return replace(Demand(LLAMA, WEIGHTS, 4096), **changes)  # type: ignore[arg-type]


def device_with(usable_bytes: int) -> DeviceMemory:
    return DeviceMemory("cpu", "a test's device", usable_bytes, usable_bytes)


def room_for(wanted: Demand, sessions: int) -> int:
    return wanted.fixed_bytes + sessions * wanted.session_bytes


def parts(plan: CapacityPlan) -> int:
    return plan.weight_bytes + plan.workspace_bytes + plan.reserve_bytes + plan.cache_bytes + plan.unused_bytes


@pytest.mark.parametrize("sessions", [1, 2, 17])
@pytest.mark.parametrize("short", [0, 1])
def test_sessions_fit_to_the_byte(sessions: int, short: int) -> None:
    plan = plan_capacity(demand(), device_with(room_for(demand(), sessions + 1) - 1))
    assert plan.sessions == sessions
    exact = device_with(room_for(demand(), sessions) - short)
    if sessions == 1 and short:
        with pytest.raises(CannotFit) as caught:
            plan_capacity(demand(), exact)
        assert caught.value.needed_bytes == exact.usable_bytes + 1
        assert caught.value.available_bytes == exact.usable_bytes
    else:
        assert plan_capacity(demand(), exact).sessions == sessions - short


def test_what_is_left_is_cache_in_whole_pages() -> None:
    wanted = demand(sessions=2)
    page = 64 * 131_072
    plan = plan_capacity(wanted, device_with(room_for(wanted, 2) + 3 * page + 17))
    assert (plan.page_bytes, plan.cache_bytes, plan.unused_bytes) == (page, 3 * page, 17)
    assert plan.page_count == 2 * 64 + 3
    assert plan.limited_by is LimitedBy.SESSIONS_ASKED


def test_a_worker_holds_no_more_sessions_than_a_step_has_rows() -> None:
    wanted = demand(context_tokens=1)
    plan = plan_capacity(wanted, device_with(1 << 50))
    assert plan.sessions == MAX_SESSIONS
    assert plan.limited_by is LimitedBy.MAX_SESSIONS


def test_steps_of_more_rows_take_workspace_and_hold_no_more_sessions() -> None:
    few, many = (
        replace(demand(context_tokens=1), max_step_rows=rows) for rows in (STEP_ROWS["cpu"], STEP_ROWS["cuda"])
    )
    plans = [plan_capacity(wanted, device_with(1 << 50)) for wanted in (few, many)]
    assert plans[0].sessions == plans[1].sessions == MAX_SESSIONS
    assert plans[0].workspace_bytes < plans[1].workspace_bytes


def test_a_full_plan_is_limited_by_memory() -> None:
    assert plan_capacity(demand(), device_with(room_for(demand(), 3))).limited_by is LimitedBy.MEMORY


@pytest.mark.parametrize("sessions", [0, -1, MAX_SESSIONS + 1])
def test_a_number_of_sessions_that_no_worker_holds_is_refused(sessions: int) -> None:
    with pytest.raises(ValueError, match=f"{sessions} sessions: a worker holds 1 to {MAX_SESSIONS}"):
        plan_capacity(demand(sessions=sessions), device_with(1 << 50))


@pytest.mark.parametrize("context", [131_073, 10**12])
def test_a_context_beyond_the_models_own_is_refused_with_both_numbers(context: int) -> None:
    with pytest.raises(ContextTooLong, match=f"a context of {context} tokens, but the model's own is 131072"):
        plan_capacity(demand(context_tokens=context), device_with(1 << 60))


@pytest.mark.parametrize("context", [0, -1])
def test_a_context_of_nothing_is_refused(context: int) -> None:
    with pytest.raises(ValueError, match=f"a context of {context} tokens: at least 1 is needed"):
        plan_capacity(demand(context_tokens=context), device_with(1 << 60))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("over", [-1 << 20, 0, 1])
def test_a_model_the_size_of_its_card_does_not_fit(gpu: object, over: int) -> None:
    """A07, a capacity that is negative, or rounded up to one session."""
    device = find_gpu(getattr(gpu, "name", "")).device
    with pytest.raises(CannotFit) as caught:
        plan_capacity(demand(weight_bytes=device.memory_bytes + over, context_tokens=256), device)
    assert caught.value.needed_bytes > caught.value.available_bytes == device.usable_bytes
    assert "not even the weights and workspace fit" in caught.value.advice


@pytest.mark.parametrize("memory_bytes", [0, 1, PROCESS_BASE_BYTES, PROCESS_BASE_BYTES + 1])
@pytest.mark.parametrize("kind", [cpu_memory, gpu_memory])
def test_a_tiny_device_has_nothing_rather_than_less(memory_bytes: int, kind: type) -> None:
    device = kind(memory_bytes)
    assert 0 <= device.usable_bytes <= memory_bytes
    with pytest.raises(CannotFit):
        plan_capacity(demand(), device)


def test_advice_fits_when_it_is_taken() -> None:
    device = device_with(room_for(demand(), 5) + 1)
    with pytest.raises(CannotFit) as caught:
        plan_capacity(demand(sessions=9), device)
    assert caught.value.advice == (
        "would fit: 9 sessions of 2240 tokens, or 5 sessions of 4096 tokens, or 1 session of 20480 tokens"
    )
    for sessions, context in ((9, 2240), (5, 4096), (1, 20_480)):
        plan_capacity(demand(sessions=sessions, context_tokens=context), device)
        with pytest.raises(CannotFit):
            plan_capacity(demand(sessions=sessions, context_tokens=context + 1), device)


@pytest.mark.parametrize("longest", [1024, 12_800, 64_000])
def test_so_does_advice_on_a_gpu_whose_workspace_grows_with_the_context(longest: int) -> None:
    wanted = demand(sessions=2, max_step_rows=STEP_ROWS["cuda"], cores=ANY_CORES)
    one = replace(wanted, sessions=1, context_tokens=longest)
    room = room_for(one, 1)
    for usable_bytes, fitting in ((room, longest), (room - 1, longest - PAGE_TOKENS)):
        device = DeviceMemory("cuda", "a test's GPU", usable_bytes, usable_bytes, ANY_CORES)
        with pytest.raises(CannotFit) as caught:
            plan_capacity(replace(wanted, context_tokens=32_768), device)
        assert f"1 session of {fitting} tokens" in caught.value.advice
        plan_capacity(replace(one, context_tokens=fitting), device)
        with pytest.raises(CannotFit):
            plan_capacity(replace(one, context_tokens=fitting + 1), device)


def test_advice_where_no_length_fits() -> None:
    with pytest.raises(CannotFit, match="need") as caught:
        plan_capacity(demand(), device_with(demand().fixed_bytes + 10))
    assert caught.value.advice.startswith("no session of any length fits")


def test_a_reserve_of_its_own_wins_over_the_computed_one() -> None:
    each = demand().session_bytes
    plan = plan_capacity(demand(cache_reserve_bytes=3 * each + 100), device_with(room_for(demand(), 10)))
    assert (plan.sessions, plan.reserve_bytes) == (3, 3 * each)
    assert plan.limited_by is LimitedBy.CACHE_RESERVE
    assert plan.unused_bytes >= 100
    assert plan.cache_bytes + plan.unused_bytes == 7 * each


def test_sessions_that_do_not_fit_into_the_reserve_are_refused() -> None:
    each = demand().session_bytes
    with pytest.raises(CannotFit, match="but the cache reserve is") as caught:
        plan_capacity(demand(sessions=4, cache_reserve_bytes=4 * each - 1), device_with(room_for(demand(), 10)))
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (4 * each, 4 * each - 1)
    assert caught.value.advice == f"a reserve of {exact_bytes(4 * each)} fits"


def test_a_reserve_that_does_not_fit_into_the_device_is_refused() -> None:
    reserve = 11 * demand().session_bytes
    with pytest.raises(CannotFit, match="a cache reserve of") as caught:
        plan_capacity(demand(cache_reserve_bytes=reserve), device_with(room_for(demand(), 10)))
    assert caught.value.needed_bytes == demand().fixed_bytes + reserve
    assert caught.value.advice == f"a reserve of at most {exact_bytes(10 * demand().session_bytes)} fits"


def test_where_a_reserve_does_not_fit_and_its_sessions_neither_what_fits_without_it_is_told() -> None:
    wanted = demand(sessions=12, cache_reserve_bytes=11 * demand().session_bytes)
    with pytest.raises(CannotFit) as caught:
        plan_capacity(wanted, device_with(room_for(demand(), 10)))
    assert caught.value.advice.startswith("without a cache reserve: would fit: 12 sessions of ")
    assert ", or 10 sessions of 4096 tokens, or 1 session of " in caught.value.advice


ADVISED_SESSIONS = re.compile(r"([0-9]+) sessions? of ([0-9]+) tokens")
ADVISED_RESERVE = re.compile(r"^a reserve of (?:at most )?([0-9]+) bytes")


def advised(asked: Demand, advice: str) -> list[Demand]:
    """What is asked for by who takes a refusal's advice."""
    reserve = ADVISED_RESERVE.match(advice)
    if reserve is not None:
        return [replace(asked, cache_reserve_bytes=int(reserve[1]))]
    without = replace(asked, cache_reserve_bytes=None) if advice.startswith("without a cache reserve: ") else asked
    found = ADVISED_SESSIONS.findall(advice)
    return [replace(without, sessions=int(count), context_tokens=int(tokens)) for count, tokens in found]


@pytest.mark.parametrize("cores", [(), ANY_CORES], ids=["CPU", "GPU"])
@settings(deadline=None)
@given(
    context=st.integers(1, 131_072),
    sessions=st.none() | st.integers(1, MAX_SESSIONS),
    reserve=st.none() | st.integers(1, 1 << 34),
    room=st.integers(0, 1 << 34),
)
def test_whatever_is_refused_its_advice_fits(
    cores: tuple[GpuCores, ...], context: int, sessions: int | None, reserve: int | None, room: int
) -> None:
    asked = demand(context_tokens=context, sessions=sessions, cache_reserve_bytes=reserve, cores=cores)
    usable_bytes = asked.fixed_bytes + room
    device = DeviceMemory("cuda" if cores else "cpu", "a test's device", usable_bytes, usable_bytes, cores)
    try:
        plan_capacity(asked, device)
    except CannotFit as error:
        for taken in advised(asked, error.advice):
            plan_capacity(taken, device)


def test_every_thread_that_draws_is_in_the_workspace() -> None:
    larger = replace(LLAMA, vocabulary_size=LLAMA.vocabulary_size + 1000)
    assert workspace_bytes(larger, 1) - workspace_bytes(LLAMA, 1) == 1000 * DRAWING_THREADS * DRAW_BYTES


def test_the_workspace_grows_with_rows_and_with_experts() -> None:
    assert workspace_bytes(LLAMA, 2) > workspace_bytes(LLAMA, 1) > 0
    moe = SHAPES["Mixtral-8x7B"]
    assert workspace_bytes(moe, 8) > workspace_bytes(LLAMA, 8)


shapes = st.sampled_from(sorted(SHAPES))
memories = st.integers(0, 1 << 38)
contexts = st.integers(1, 131_072)
kv_types = st.sampled_from(KVType)
asked = st.none() | st.integers(1, MAX_SESSIONS)
reserves = st.none() | st.integers(1, 1 << 37)


def planned(wanted: Demand, usable_bytes: int) -> CapacityPlan | None:
    refused: CannotFit | None = None
    try:
        return plan_capacity(wanted, device_with(usable_bytes))
    except CannotFit as error:
        refused = error
    assert refused.needed_bytes > refused.available_bytes >= 0
    assert refused.advice
    return None


@given(shapes, st.integers(0, 1 << 37), contexts, kv_types, asked, reserves, memories)
def test_a_plan_adds_up(
    name: str, weights: int, context: int, kv_type: KVType, sessions: int | None, reserve: int | None, memory: int
) -> None:
    plan = planned(Demand(SHAPES[name], weights, context, kv_type, sessions, reserve), memory)
    if plan is None:
        return
    assert parts(plan) == plan.usable_bytes
    assert plan.reserve_bytes == plan.sessions * plan.session_bytes
    assert 1 <= plan.sessions <= MAX_SESSIONS
    assert min(plan.cache_bytes, plan.unused_bytes, plan.workspace_bytes, plan.page_bytes) >= 0
    assert sessions is None or plan.sessions == sessions
    assert reserve is None or plan.reserve_bytes <= reserve <= plan.usable_bytes - plan.cache_bytes


@given(shapes, contexts, kv_types, memories, st.integers(0, 1 << 34))
def test_more_memory_never_holds_fewer_sessions(
    name: str, context: int, kv_type: KVType, memory: int, more: int
) -> None:
    wanted = Demand(SHAPES[name], 1 << 30, context, kv_type)
    less, greater = planned(wanted, memory), planned(wanted, memory + more)
    assert (less.sessions if less else 0) <= (greater.sessions if greater else 0)


@given(shapes, contexts, contexts, kv_types, memories)
def test_a_longer_context_never_holds_more_sessions(
    name: str, one: int, other: int, kv_type: KVType, memory: int
) -> None:
    short, long = sorted((one, other))
    plans = [planned(Demand(SHAPES[name], 1 << 30, tokens, kv_type), memory) for tokens in (short, long)]
    held = [plan.sessions if plan else 0 for plan in plans]
    assert held[0] >= held[1]


@given(shapes, contexts, kv_types, memories)
def test_one_session_more_than_a_full_plan_never_fits(name: str, context: int, kv_type: KVType, memory: int) -> None:
    wanted = Demand(SHAPES[name], 1 << 30, context, kv_type)
    plan = planned(wanted, memory)
    if plan and plan.limited_by is LimitedBy.MEMORY and plan.sessions < MAX_SESSIONS:
        assert planned(replace(wanted, sessions=plan.sessions), memory)
        assert planned(replace(wanted, sessions=plan.sessions + 1), memory) is None
