from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from decodepool_cli.pool_memory import require_room, worker_bytes
from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.devices import PROCESS_BASE_BYTES
from decodepool_sizing.errors import CannotFit
from decodepool_sizing.manifest import DecodePoolSpec
from decodepool_sizing.quantities import exact_bytes
from decodepool_sizing.readers import file_reader
from decodepool_worker.engine.open import DEFAULT_SESSIONS, Wanted, plan_worker, read_model

from tests.cli.conftest import Call
from tests.cli.models import write_untold
from tests.cli.test_run import pool


@pytest.fixture
def untold(tmp_path: Path) -> Path:
    return write_untold(tmp_path / "untold.gguf")


@pytest.fixture
def plan(untold: Path) -> CapacityPlan:
    with file_reader(untold) as reader:
        return plan_worker(read_model(reader), Wanted(4096, sessions=2, memory_bytes=1 << 30))


def test_workers_fit_to_the_last_byte_of_all_their_parts(plan: CapacityPlan) -> None:
    each = worker_bytes(plan)
    assert each == PROCESS_BASE_BYTES + plan.usable_bytes - plan.unused_bytes
    require_room(plan, 3, 3 * each)
    with pytest.raises(CannotFit) as refusal:
        require_room(plan, 3, 3 * each - 1)
    assert str(refusal.value) == (
        f"3 workers of {exact_bytes(each)} need {exact_bytes(3 * each)}, "
        f"but this machine has {exact_bytes(3 * each - 1)} available"
    )
    assert (refusal.value.needed_bytes, refusal.value.available_bytes) == (3 * each, 3 * each - 1)


@pytest.mark.parametrize(
    ("available_bytes", "advice"),
    [
        (2 << 30, f"would fit: spec.replicas: 2, or spec.accelerator.memory: {(2 << 30) // 3}, with less cache"),
        (1 << 28, "fewer sessions or a shorter context may fit"),
    ],
    ids=["two of three", "none"],
)
def test_a_refusal_says_what_would_fit(plan: CapacityPlan, available_bytes: int, advice: str) -> None:
    with pytest.raises(CannotFit) as refusal:
        require_room(plan, 3, available_bytes)
    assert refusal.value.advice == advice


def test_a_pool_too_large_for_the_machine_is_refused_before_anything_starts(
    call: Call, untold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decodepool_cli.run.available_memory_bytes", lambda: 2 << 30)
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool(untold, replicas=3, accelerator={"type": "cpu", "memory": "1Gi"})))
    done = call("run", path)
    assert (done.code, done.out) == (1, "")
    assert "3 workers of " in done.err
    assert f"but this machine has {2 << 30} bytes (2.0 GiB) available; would fit: spec.replicas: 2" in done.err


@pytest.mark.parametrize("over", [0, 1])
def test_a_worker_is_not_told_to_use_more_than_there_is(
    untold: Path, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    monkeypatch.setattr("decodepool_worker.engine.open.available_memory_bytes", lambda: 1 << 30)
    wanted = Wanted(64, memory_bytes=(1 << 30) + over)
    with file_reader(untold) as reader, pytest.raises(CannotFit) if over else nullcontext() as refusal:
        plan_worker(read_model(reader), wanted)
    if refusal:
        assert (refusal.value.needed_bytes, refusal.value.available_bytes) == ((1 << 30) + 1, 1 << 30)


def test_sessions_without_a_number_or_memory_are_those_that_the_manifest_says(untold: Path) -> None:
    with file_reader(untold) as reader:
        assert plan_worker(read_model(reader), Wanted(64)).sessions == DEFAULT_SESSIONS
    described = DecodePoolSpec.model_fields["sessions_per_worker"].description or ""
    assert f"; {DEFAULT_SESSIONS} on a CPU without memory or cacheReserve." in described
