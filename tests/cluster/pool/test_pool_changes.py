"""A pool that is changed: what its status says is true of the present spec at every moment; old workers serve on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from decodepool_cluster.linux import wait_until

from tests.cluster.pool.conftest import Pools
from tests.cluster.pool.pools import Object, Pool, condition_in, host_path, seen

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.model]

PROMPT = [5, 17, 40, 3]
PAUSE = 3.0


def check_truth(versions: list[Object]) -> None:
    """Ready is claimed only of the generation beside it, and only with every worker of that generation ready."""
    for version in versions:
        status, spec = version["status"], version["spec"]
        ready = condition_in(status, "Ready")
        assert {each["observedGeneration"] for each in status["conditions"]} == {status["observedGeneration"]}
        if ready["status"] == "True" and status["observedGeneration"] == version["metadata"]["generation"]:
            counts = [status[key] for key in ("replicas", "readyReplicas", "updatedReplicas")]
            assert counts == [spec["replicas"]] * 3
            assert status["plan"]["contextTokens"] == spec["contextTokens"]
            assert status["plan"]["kvType"] == spec["kvType"]


def left_ready(versions: list[Object], generation: int) -> bool:
    """Whether the first word about a generation was that it is not ready."""
    of_it = [each for each in versions if each["status"]["observedGeneration"] == generation]
    return bool(of_it) and condition_in(of_it[0]["status"], "Ready")["status"] == "False"


def greedy(pool: Pool) -> list[int]:
    client = pool.endpoint()
    session = client.post("/v1/sessions", {"tokens": PROMPT}, 201)["id"]
    tokens: list[int] = client.decode(session, max_tokens=24, ignore_eos=True)["tokens"]
    client.call("DELETE", f"/v1/sessions/{session}")
    return tokens


@pytest.fixture(scope="module")
def made(pools: Pools) -> dict[str, Pool]:
    """Both pools of this module, made at once: one to be changed well, one to be broken."""
    return {
        "edited": pools("edited").make(host_path("tiny-1.gguf")),
        "broken": pools("broken").make(host_path("tiny-1.gguf"), replicas=2),
    }


@pytest.fixture
def edited(made: dict[str, Pool]) -> Pool:
    return made["edited"].wait_ready()


@pytest.fixture
def broken(made: dict[str, Pool]) -> Pool:
    return made["broken"]


def context_of(pool: Pool) -> Any:
    return pool.worker().get("/v1/capacity")["context_tokens"]


EDITS: dict[str, tuple[Object, Callable[[Pool], Any], Any]] = {
    "context": ({"contextTokens": 2048}, context_of, 2048),
    "kvType": ({"kvType": "q8_0"}, lambda pool: pool.status()["plan"]["kvType"], "q8_0"),
    "model": ({"model": host_path("tiny-2.gguf")}, lambda pool: pool.status()["model"]["name"], "tiny-2"),
    "replicas": ({"replicas": 2}, lambda pool: pool.endpoint().get("/v1/capacity")["sessions"]["capacity"], 8),
}


@pytest.mark.parametrize(("change", "look", "found"), EDITS.values(), ids=EDITS)
def test_an_edit_is_ready_only_once_it_is_true(
    change: Object, look: Callable[[Pool], Any], found: Any, edited: Pool
) -> None:
    """A04, Ready is claimed too early: not for pods of the spec before."""
    before = greedy(edited)
    with seen(edited) as versions:
        edited.change(**change)
        generation = edited.get()["metadata"]["generation"]
        edited.wait_ready()
        assert look(edited) == found
        assert (greedy(edited) == before) == ("model" not in change)
        time.sleep(0.5)
    check_truth(versions)
    assert left_ready(versions, generation)


BREAKS: dict[str, tuple[Object, str, str, str]] = {
    "an image that is not": (
        {"template": {"image": "localhost/nobody-built-this:1"}},
        "WorkersAvailable", "Available", "ImagePullBackOff: .*localhost/nobody-built-this:1",
    ),
    "an environment in which nothing starts": (
        {"template": {"image": None, "env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}},
        "WorkersAvailable", "Available", "CrashLoopBackOff: .*decodepool ended with 1",
    ),
    "a Secret that is missing": (
        {"template": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]}},
        "WorkersAvailable", "Available", 'CreateContainerConfigError: .*secret "no" not found',
    ),
    "a context that the model was not made for": (
        {"contextTokens": 1_000_000}, "CapacityPlanned", "ContextTooLong", "ContextTooLong: .*1000000.*4096",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "reason", "words"), BREAKS.values(), ids=BREAKS)
def test_a_spec_that_cannot_work_says_why_and_the_old_workers_serve_on(
    change: Object, kind: str, reason: str, words: str, broken: Pool
) -> None:
    """A04, Ready is claimed too early: not for pods that never start."""
    if change == next(iter(BREAKS.values()))[0]:
        broken.wait_ready()
    serving = greedy(broken)
    with seen(broken) as versions:
        broken.change(**change)
        generation = broken.get()["metadata"]["generation"]
        told = words.partition(":")[0]
        message = broken.wait_condition("Ready", told, 60)
        time.sleep(PAUSE)
        assert greedy(broken) == serving, "an old worker serves on"
    check_truth(versions)
    assert left_ready(versions, generation)
    assert re.search(words.partition(": ")[2], message), message
    assert broken.condition(kind)["reason"] == reason
    assert broken.status()["readyReplicas"] == 0, "no ready worker is of this spec"
    assert not any(
        condition_in(each["status"], "Ready")["status"] == "True"
        for each in versions
        if each["status"]["observedGeneration"] == generation
    )


def test_the_repair_is_ready_again(broken: Pool) -> None:
    broken.change(contextTokens=1024, template=None)
    broken.wait_ready()
    wait_until(lambda: len(broken.pods()) == 2, "the broken pods to go")
    assert greedy(broken)
