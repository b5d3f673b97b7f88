"""Whole lives of pools in a cluster in memory: they begin, roll out, scale, fail, are repaired, and come to rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from decodepool_operator import times
from decodepool_operator.plan import plan
from decodepool_operator.state import Object
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.pools import cluster, facts, gpu_pool, host_path_pool, node, pool, reader_that_says, workers_that
from tests.operator.simulation import Cluster, Fate, component_of, is_going, is_ready, well

TOO_LITTLE = {"type": "cpu", "memory": "64Mi"}


def ready(cluster: Cluster) -> tuple[str, str]:
    told = cluster.condition("Ready")
    return told["status"], told["reason"]


def names(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def test_a_pool_comes_up_and_says_what_it_holds() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.status["sessions"] == {"capacity": 16, "active": 0, "queued": 0, "summary": "0/16"}
    assert (here.status["workers"], here.status["replicas"], here.status["readyReplicas"]) == ("2/2", 2, 2)
    assert here.status["endpoint"] == "http://chat.team.svc"


def test_a_settled_pool_is_never_written_again() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    writes = here.writes
    here.run(600)
    assert here.writes == writes


def test_a_model_on_the_nodes_is_read_once_by_a_job_that_is_gone_afterwards() -> None:
    here = Cluster(host_path_pool(), fate=reader_that_says())
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert not [key for key in here.objects if key[0] == "Job"]
    made = here.made_pods
    here.edit(lambda spec: spec.update(contextTokens=64))
    here.settle()
    assert here.made_pods == made + 1, "the header was read again, though only the context changed"


def test_a_restarted_operator_reads_nothing_again() -> None:
    """All that is to be remembered is in the status: the cluster in memory keeps no other state of the operator's."""
    here = Cluster(host_path_pool(), fate=reader_that_says())
    here.settle()
    here.fate, here.seen, writes = well, "", here.writes
    here.run(30)
    assert here.writes == writes


def test_another_model_is_read_anew_and_rolled_out() -> None:
    here = Cluster(host_path_pool(), fate=reader_that_says())
    here.settle()
    digest = here.status["model"]["digest"]
    here.fate = reader_that_says(facts(edit={"output.weight": None}))
    here.edit(lambda spec: spec["model"]["source"]["hostPath"].update(path="/srv/models/other.gguf"))
    here.operate()
    assert ready(here) == ("False", "Resolving")
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.status["model"]["digest"] != digest
    assert here.status["model"]["name"] == "other"
    arguments = here.ready_workers()[0]["spec"]["containers"][0]["args"]
    assert "/models/other.gguf" in arguments


def rolls(spec: Object) -> None:
    spec.update(contextTokens=64)


def test_a_rollout_replaces_one_worker_at_a_time_and_is_not_ready_meanwhile() -> None:
    here = cluster(pool(replicas=3))
    here.settle()
    old = names(here.ready_workers())
    here.edit(rolls)

    def check(moment: Cluster) -> None:
        moment.operate()
        assert len(moment.ready_workers()) >= 2
        assert "failures" not in moment.status, "a worker that ended as it was told to is no failure"
        if moment.condition("Ready")["status"] == "True":
            assert not names(moment.ready_workers()) & old
        assert moment.status["observedGeneration"] == moment.pool["metadata"]["generation"]

    here.settle(check=check)
    assert ready(here) == ("True", "AllWorkersReady")
    assert not names(here.ready_workers()) & old


def test_a_broken_rollout_leaves_the_old_workers_serving_and_is_repaired_by_the_next() -> None:
    """A04: pods of the old spec serve on, and do not make the pool ready."""
    here = cluster(pool(replicas=3))
    here.settle()
    here.fate = workers_that(Fate(pulls=False), lambda pod: pod["spec"]["containers"][0]["image"] == "typo:1")
    here.edit(lambda spec: spec.update(template={"image": "typo:1"}))
    seen = []
    here.run(60, lambda moment: seen.append(ready(moment)) if moment.status["observedGeneration"] == 2 else None)
    assert ("True", "AllWorkersReady") not in seen
    assert ready(here) == ("False", "ImagePullBackOff")
    assert len(here.ready_workers()) == 2
    assert here.condition("WorkersAvailable")["status"] == "True"
    here.edit(lambda spec: spec.update(template={"image": "right:1"}))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


def test_the_emptiest_worker_goes_first() -> None:
    here = cluster(pool(replicas=3))
    here.settle()
    workers = sorted(names(here.ready_workers()))
    here.load = dict(zip(workers, (3, 0, 5), strict=True))
    here.edit(lambda spec: spec.update(replicas=2))
    here.settle()
    assert names(here.ready_workers()) == {workers[0], workers[2]}
    here.edit(lambda spec: spec.update(replicas=1))
    here.settle()
    assert names(here.ready_workers()) == {workers[2]}


def test_nothing_shrinks_before_the_costs_are_known_and_a_refusal_does_not_hold_it_up() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    here.load = {sorted(names(here.ready_workers()))[0]: 3}
    here.edit(lambda spec: spec.update(replicas=1))
    first = plan(here.pool, here.observed(), here.now)
    assert len(first.annotate) == 2
    assert "chat-worker" not in {each["metadata"]["name"] for each in first.apply if each["kind"] == "Deployment"}
    refused = replace(here.observed(), faults=("Pod chat-worker-x: Forbidden: patch",))
    second = plan(here.pool, refused, here.now)
    assert [each["spec"]["replicas"] for each in second.apply if each["metadata"]["name"] == "chat-worker"][-1:] == [1]


def test_a_worker_that_does_not_answer_is_not_taken_for_empty() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    quiet, busy = sorted(names(here.ready_workers()))
    here.load, here.silent = {busy: 7}, {quiet}
    here.edit(lambda spec: spec.update(replicas=1))
    here.settle()
    assert names(here.ready_workers()) == {quiet}


def test_an_operator_that_has_just_begun_asks_before_it_shrinks_and_does_not_ask_for_ever() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    busy, idle = sorted(names(here.ready_workers()))
    here.load, here.silent = {busy: 7}, {busy, idle}
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(10)
    assert len(here.ready_workers()) == 2
    here.silent = set()
    here.settle()
    assert names(here.ready_workers()) == {busy}


def test_workers_that_never_answer_hold_nothing_up() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    here.silent = names(here.ready_workers())
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(30)
    assert len(here.workers()) == 1


def test_a_worker_that_is_not_ready_goes_before_any_that_serves() -> None:
    here = cluster(pool(replicas=3))
    here.settle()
    bad = sorted(names(here.ready_workers()))[1]
    here.load = {name: 1 for name in names(here.ready_workers()) if name != bad}
    here.fate = workers_that(Fate(crashes="boom"), lambda pod: pod["metadata"]["name"] == bad)
    here.run(5)
    here.edit(lambda spec: spec.update(replicas=2))
    here.settle()
    assert bad not in names(here.workers())
    assert ready(here) == ("True", "AllWorkersReady")


def test_a_draining_worker_is_told_of_and_is_not_counted() -> None:
    here = cluster(pool(replicas=2), fate=workers_that(Fate(drains=20)))
    here.settle()
    going = sorted(names(here.ready_workers()))[0]
    here.load = {name: 4 for name in names(here.ready_workers()) if name != going}
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(5)
    assert here.condition("Draining")["status"] == "True"
    assert [each["pod"] for each in here.status["draining"]] == [going]
    assert here.status["draining"][0]["since"] == times.written(here.now - timedelta(seconds=5))
    assert (here.status["replicas"], here.status["readyReplicas"]) == (1, 1)
    here.run(30)
    assert "draining" not in here.status
    assert here.condition("Draining")["status"] == "False"


def test_a_pod_that_nobody_ends_is_told_of_and_does_not_count() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    here.fate = workers_that(Fate(drains=10_000))
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(60)
    assert here.condition("Draining")["reason"] == "Draining"
    here.run(30)
    assert here.condition("Draining")["reason"] == "Overdue"
    assert ready(here) == ("True", "AllWorkersReady")


def test_suspending_ends_all_workers_and_resuming_brings_them_back() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    here.edit(lambda spec: spec.update(suspend=True))
    here.settle()
    assert (here.workers(), ready(here), here.status["workers"]) == ([], ("False", "Suspended"), "0/0")
    here.edit(lambda spec: spec.update(suspend=False))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


def test_no_replicas_is_no_failure() -> None:
    here = cluster(pool(replicas=0))
    here.settle()
    assert ready(here) == ("False", "NoReplicas")
    assert here.condition("Degraded")["status"] == "False"


def test_a_pool_that_cannot_fit_has_no_pods_and_says_the_numbers() -> None:
    here = Cluster(host_path_pool(accelerator=TOO_LITTLE), fate=reader_that_says())

    def check(moment: Cluster) -> None:
        if moment.condition("CapacityPlanned")["status"] == "False":
            assert not moment.pods, "a pod was there when the pool was told that it cannot fit"

    here.settle(check=check)
    told = here.condition("CapacityPlanned")
    assert (told["status"], told["reason"]) == ("False", "CannotFit")
    assert "bytes" in told["message"]
    assert ready(here) == ("False", "CannotFit")


def test_a_spec_that_cannot_fit_leaves_what_runs_alone_until_it_is_suspended() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    running = names(here.ready_workers())
    here.edit(lambda spec: spec.update(accelerator=TOO_LITTLE))
    here.settle()
    assert ready(here) == ("False", "CannotFit")
    assert (names(here.ready_workers()), here.status["readyReplicas"]) == (running, 0)
    here.edit(lambda spec: spec.update(suspend=True))
    here.settle()
    assert not here.workers()
    here.edit(lambda spec: spec.update(suspend=False, accelerator={"type": "cpu"}))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


TROUBLES: dict[str, tuple[Fate, str, str]] = {
    "crash": (Fate(crashes="INFO start\ndecodepool: error: no such kernel"), "CrashLoopBackOff", "no such kernel"),
    "out of memory": (Fate(out_of_memory=True), "OOMKilled", "more memory than its limit"),
    "image": (Fate(pulls=False), "ImagePullBackOff", "image worker:1 cannot be pulled"),
}


@pytest.mark.parametrize("name", sorted(TROUBLES))
def test_what_pods_die_of_is_the_reason_and_stays_one_message(name: str) -> None:
    """A06: the kubelet's states alternate, and its texts have times and names in them."""
    fate, reason, said = TROUBLES[name]
    here = cluster(pool(replicas=2), fate=workers_that(fate))
    here.run(60)
    assert ready(here) == ("False", reason)
    assert said in here.condition("Ready")["message"]
    writes, events = here.writes, len(here.events)
    here.run(300)
    assert (here.writes, len(here.events)) == (writes, events)


def test_one_failed_pod_is_removed_and_replaced_by_one() -> None:
    """A05: UnexpectedAdmissionError, Evicted, Succeeded."""
    here = cluster(pool(replicas=2))
    here.settle()
    made, victim = here.made_pods, sorted(names(here.ready_workers()))[0]
    here.pods[victim]["status"].update(
        phase="Failed", reason="Evicted", message="the node was low on memory", conditions=[]
    )
    here.fate = workers_that(Fate())
    here.settle()
    assert (here.made_pods, victim in here.pods) == (made + 1, False)
    assert ready(here) == ("True", "AllWorkersReady")
    assert [event.message for event in here.events if event.reason == "WorkerFailed"] == [
        f"{victim}: Evicted: the node was low on memory"
    ]
    here.run(300)
    assert "failures" not in here.status


def test_pods_that_fail_again_and_again_are_replaced_ever_more_slowly() -> None:
    here = cluster(pool(replicas=2), fate=workers_that(Fate(fails="UnexpectedAdmissionError")))
    dead = []
    here.run(600, lambda moment: dead.append(sum(pod["status"]["phase"] == "Failed" for pod in moment.pods.values())))
    assert max(dead) <= 4
    assert here.made_pods < 25, "pods pile up"
    assert ready(here) == ("False", "UnexpectedAdmissionError")
    assert here.condition("Degraded")["reason"] == "WorkersFail"
    changes = len(here.history)
    here.run(200)
    assert len(here.history) - changes <= 3
    here.fate = well
    here.run(700)
    assert ready(here) == ("True", "AllWorkersReady")
    assert "failures" not in here.status


def test_a_repaired_spec_does_not_wait_for_the_old_ones_failures() -> None:
    fails = workers_that(
        Fate(fails="CreateFailed"), lambda pod: "--context=128" in pod["spec"]["containers"][0]["args"]
    )
    here = cluster(pool(), fate=fails)
    here.run(300)
    here.edit(rolls)
    here.run(15)
    assert ready(here) == ("True", "AllWorkersReady")


QUOTA = (
    'pods "{pod}" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
    "used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0"
)


def test_a_quota_is_told_once_in_its_own_words() -> None:
    here = cluster(gpu_pool(), nodes=[node("a")], quota_message=QUOTA)
    here.run(60)
    assert ready(here) == ("False", "QuotaExceeded")
    assert "exceeded quota: gpus" in here.condition("WaitingForGPU")["message"]
    writes = here.writes
    here.run(300)
    assert here.writes == writes
    here.quota_message = None
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


def test_a_pool_without_gpus_waits_with_the_schedulers_own_words() -> None:
    here = cluster(gpu_pool(replicas=2), nodes=[node("a")])
    here.settle()
    told = here.condition("WaitingForGPU")
    assert (told["status"], told["message"]) == ("True", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    assert ready(here) == ("False", "Unschedulable")
    here.nodes.append(node("b"))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.condition("WaitingForGPU")["status"] == "False"


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H200"}, "no node has nvidia.com/gpu.product=h200: there are NVIDIA-H200"),
        ({}, "no node has nvidia.com/gpu.product=h200: there is none"),
        ({"nvidia.com/gpu.product": "h200"}, None),
    ],
)
def test_a_product_that_no_node_has_is_told_beside_the_schedulers_words(label: Object, said: str | None) -> None:
    raw = gpu_pool(accelerator={"type": "nvidia", "product": "h200"})
    here = cluster(raw, nodes=[node("a", label, gpus=0)])
    here.settle()
    message = here.condition("WaitingForGPU")["message"]
    assert message.startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    assert message.endswith(said or "Insufficient nvidia.com/gpu.")


def test_a_rollout_without_a_spare_gpu_waits_for_the_drain_and_says_so() -> None:
    here = cluster(gpu_pool(), nodes=[node("a")], fate=workers_that(Fate(drains=20)))
    here.settle()
    here.edit(rolls)
    here.run(5)
    assert here.condition("WaitingForGPU")["reason"] == "WaitingForDrain"
    here.run(60)
    assert ready(here) == ("True", "AllWorkersReady")


def test_more_workers_than_gpus_are_rolled_out_all_the_same() -> None:
    """One worker waits for ever: that must not keep the others from being replaced, nor more than one be missing."""
    here = cluster(gpu_pool(replicas=3), nodes=[node("a"), node("b")])
    here.settle()
    old = names(here.ready_workers())
    here.edit(rolls)
    here.run(300, lambda moment: require(len(moment.ready_workers()) >= 1, "no worker was left"))
    assert len(here.ready_workers()) == 2
    assert not names(here.ready_workers()) & old


def require(holds: bool, message: str) -> None:
    assert holds, message


def test_an_unreadable_model_is_tried_again_ever_more_slowly_under_one_message() -> None:
    lost = Fate(ready_after=1, exits=2, says="NotFound: no such file or directory")
    here = Cluster(host_path_pool(), fate=lambda pod: lost if component_of(pod) == "reader" else Fate())
    here.run(900)
    told = here.condition("ModelResolved")
    assert (told["reason"], told["message"]) == ("NotFound", "/srv/models/tiny.gguf: no such file or directory")
    assert 4 <= here.made_pods <= 12
    assert len(here.history) <= 4
    here.fate = reader_that_says()
    here.run(600)
    assert ready(here) == ("True", "AllWorkersReady")


def test_a_reader_job_that_gets_no_pod_says_so_once_and_asks_for_nothing_every_second() -> None:
    here = Cluster(host_path_pool(), makes_job_pods=False)
    here.run(50)
    assert "read by a Job" in here.condition("Ready")["message"]
    here.run(20)
    assert "has no pod" in here.condition("Ready")["message"]
    plans = here.plans
    here.run(100)
    assert here.plans == plans


def test_a_reader_that_was_put_nowhere_is_made_anew_with_the_repaired_template() -> None:
    raw = host_path_pool(template={"nodeSelector": {"zone": "typo"}})
    here = Cluster(raw, fate=lambda pod: Fate(ready_after=10_000))
    here.run(20)
    assert ready(here) == ("False", "Resolving")
    here.fate = reader_that_says()
    here.edit(lambda spec: spec.update(template={"nodeSelector": {"zone": "a"}}))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


def test_what_somebody_changes_in_a_child_is_put_right_and_what_they_add_is_theirs() -> None:
    here = cluster(pool())
    here.settle()
    service, budget = here.objects["Service", "chat"], here.objects["PodDisruptionBudget", "chat-worker"]
    budget["spec"]["maxUnavailable"] = 3
    service["metadata"]["annotations"]["team/owner"] = "us"
    writes = here.writes
    here.run(3)
    assert here.writes == writes + 1
    assert here.objects["PodDisruptionBudget", "chat-worker"]["spec"]["maxUnavailable"] == 1
    assert here.objects["Service", "chat"]["metadata"]["annotations"]["team/owner"] == "us"


def test_an_object_of_somebody_elses_is_left_alone_and_told_of() -> None:
    here = cluster(pool())
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": "team", "uid": "x"},
        "spec": {},
    }
    here.objects["Service", "chat"] = theirs
    here.run(30)
    assert here.objects["Service", "chat"] is theirs
    assert here.condition("Degraded")["reason"] == "NameTaken"
    assert ready(here) == ("False", "NameTaken")
    del here.objects["Service", "chat"]
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


def test_a_cache_that_is_no_longer_wanted_goes() -> None:
    raw = pool()
    raw["spec"]["model"]["cache"] = {"size": "10Gi"}
    here = cluster(raw)
    here.settle()
    assert ("PersistentVolumeClaim", "chat-models") in here.objects
    here.edit(lambda spec: spec["model"].pop("cache"))
    here.settle()
    assert ("PersistentVolumeClaim", "chat-models") not in here.objects


def test_a_pool_that_is_being_deleted_is_left_alone() -> None:
    here = cluster(pool())
    here.settle()
    here.pool["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    writes = here.writes
    here.edit(rolls)
    here.run(10)
    assert here.writes == writes


EDITS: dict[str, Callable[[Object], Any]] = {
    "context": lambda spec: spec.update(contextTokens=64 if spec["contextTokens"] != 64 else 128),
    "up": lambda spec: spec.update(replicas=min(spec["replicas"] + 1, 4)),
    "down": lambda spec: spec.update(replicas=max(spec["replicas"] - 1, 0)),
    "suspend": lambda spec: spec.update(suspend=not spec.get("suspend", False)),
    "sessions": lambda spec: spec.update(sessionsPerWorker=spec["sessionsPerWorker"] % 8 + 1),
    "impossible": lambda spec: spec.update(
        accelerator=TOO_LITTLE if "memory" not in spec["accelerator"] else {"type": "cpu"}
    ),
    "image": lambda spec: spec.update(template={"image": "bad:1"} if "template" not in spec else {}),
    "nothing": lambda spec: None,
}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(EDITS)), st.integers(0, 12)), max_size=8))
def test_after_any_edits_at_any_moments_the_pool_comes_to_rest_as_its_last_spec_says(
    steps: list[tuple[str, int]],
) -> None:
    """A02: nothing is lost, whatever it interrupts; nothing is written once it is done; nothing is left over."""
    bad = workers_that(Fate(crashes="boom"), lambda pod: pod["spec"]["containers"][0]["image"] == "bad:1")
    here = cluster(pool(replicas=2), fate=bad)

    def check(moment: Cluster) -> None:
        if moment.condition("Ready")["status"] != "True" or moment.status["observedGeneration"] != generation(moment):
            return
        arguments = {pod["spec"]["containers"][0]["args"][2] for pod in moment.workers() if is_ready(pod)}
        assert arguments == {f"--context={moment.pool['spec']['contextTokens']}"}

    for name, seconds in steps:
        here.edit(EDITS[name])
        here.run(seconds, lambda moment: check(moment) if "conditions" in moment.status else None)
    here.run(180)
    writes = here.writes
    here.run(150)
    assert here.writes == writes
    assert here.status["observedGeneration"] == generation(here)
    rests_as_told(here)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(moments=st.sets(st.integers(0, 60), max_size=12), seconds=st.integers(0, 8))
def test_an_operator_that_is_killed_between_any_two_writes_leaves_nothing_half_done(
    moments: set[int], seconds: int
) -> None:
    here = Cluster(host_path_pool(replicas=2), fate=reader_that_says())
    writes = itertools.count()
    here.dies = lambda: next(writes) in moments
    here.run(seconds)
    here.edit(rolls)
    here.run(seconds)
    here.edit(lambda spec: spec.update(replicas=3))
    here.run(90)
    assert ready(here) == ("True", "AllWorkersReady")
    kinds = sorted(key for key in here.objects if key[0] in ("Deployment", "Job"))
    assert kinds == [("Deployment", "chat-gateway"), ("Deployment", "chat-worker")]
    rests_as_told(here)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    blows=st.lists(
        st.tuples(st.sampled_from(["kill", "fail", "load", "node goes", "node comes", "silence"]), st.integers(0, 20)),
        max_size=10,
    )
)
def test_after_any_blows_an_autoscaled_gpu_pool_comes_to_rest_within_its_bounds(blows: list[tuple[str, int]]) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 3, "scaleDownDelaySeconds": 20}
    here = cluster(gpu_pool(replicas=2, autoscaling=scaling), nodes=[node("a"), node("b"), node("c")])
    here.run(5)
    for name, seconds in blows:
        strike(here, name)
        here.run(seconds, lambda moment: require(1 <= moment.pool["spec"]["replicas"] <= 3, "out of bounds"))
    here.load, here.silent = {}, set()
    here.nodes = [node(name) for name in "abc"]
    here.run(600)
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.pool["spec"]["replicas"] == len(here.ready_workers()) == 1
    writes = here.writes
    here.run(200)
    assert here.writes == writes


def strike(here: Cluster, name: str) -> None:
    """Do something that happens to clusters."""
    workers = sorted(here.workers(), key=lambda pod: str(pod["metadata"]["name"]))
    if name == "node goes" and here.nodes:
        gone = here.nodes.pop()["metadata"]["name"]
        here.pods = {key: pod for key, pod in here.pods.items() if pod["metadata"].get("node") != gone}
    elif name == "node comes":
        here.nodes.append(node(f"n{len(here.nodes)}"))
    elif name == "load":
        here.load = {pod["metadata"]["name"]: 8 for pod in workers}
    elif name == "silence":
        here.silent = {pod["metadata"]["name"] for pod in workers}
    elif name == "kill" and workers:
        del here.pods[workers[0]["metadata"]["name"]]
    elif name == "fail" and workers:
        workers[0]["status"].update(phase="Failed", reason="UnexpectedAdmissionError", conditions=[])


def generation(here: Cluster) -> int:
    found: int = here.pool["metadata"]["generation"]
    return found


def rests_as_told(here: Cluster) -> None:
    """Hold the cluster to the spec."""
    spec = here.pool["spec"]
    wanted = 0 if spec.get("suspend") else spec["replicas"]
    impossible, broken = "memory" in spec["accelerator"], spec.get("template", {}).get("image") == "bad:1"
    assert not [pod for pod in here.pods.values() if is_going(pod)]
    if impossible:
        assert ready(here) == ("False", "Suspended" if spec.get("suspend") else "CannotFit")
    elif not wanted or broken:
        assert here.condition("Ready")["status"] == "False"
        assert len(here.workers()) == wanted
    else:
        assert ready(here) == ("True", "AllWorkersReady")
        assert len(here.ready_workers()) == wanted == here.status["readyReplicas"]
