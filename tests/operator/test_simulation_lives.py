"""Whole lives of pools in a cluster in memory: they begin, roll out, scale, and come to rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from decodepool_operator import times
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.state import Object
from decodepool_sizing.facts import ModelFacts

from tests.operator.lives import TOO_LITTLE, names, ready, require, rolls
from tests.operator.pools import (
    cluster,
    facts,
    gpu_pool,
    host_path_pool,
    node,
    pool,
    reader_that_says,
    resolved,
    workers_that,
)
from tests.operator.simulation import START, Cluster, Fate, well
from tests.sizing.models import llama_shape

TESLA_T4 = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.product": "Tesla-T4"}
L4 = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}
H100 = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
WIDE = replace(facts(), shape=llama_shape(256))
"""A model whose heads an L4 has too little shared memory for, in f16."""


def test_a_pool_comes_up_and_says_what_it_holds() -> None:
    here = cluster(pool(replicas=2))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.status["sessions"] == {"capacity": 16, "active": 0, "queued": 0, "summary": "0/16"}
    assert (here.status["workers"], here.status["replicas"], here.status["readyReplicas"]) == ("2/2", 2, 2)
    assert here.status["endpoint"] == "http://chat.team.svc"


def test_a_settled_pool_is_never_written_again() -> None:
    """A06, status writes that wake their writer."""
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
    """A04, Ready is claimed too early: pods of the old spec serve on, and do not make the pool ready."""
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
    marks = tuple(f"Pod {name}: Forbidden: patch" for name, _ in first.annotate)
    assert not plan(here.pool, replace(here.observed(), faults=marks[:1]), here.now).apply
    refused = replace(here.observed(), faults=marks)
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


STANDING = {
    "an old definition": "the installed CRD is older than this operator and drops status.plan",
    "a refused object": "PodMonitor chat: Forbidden: no PodMonitors here",
    "a pod that is not this one": "Pod chat-worker-x: Forbidden: it cannot be deleted",
}


@pytest.mark.parametrize("fault", STANDING.values(), ids=STANDING)
def test_the_emptiest_worker_goes_first_whatever_else_is_refused(fault: str) -> None:
    """The ReplicaSet controller hears of a mark by a watch: what shrinks with it may shrink before it."""
    here = cluster(pool(replicas=2), faults=(fault,))
    here.settle()
    busy, idle = sorted(names(here.ready_workers()))
    here.load, here.silent = {busy: 7}, {busy, idle}
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(10)
    assert len(here.ready_workers()) == 2, "an operator that has just begun asks before it shrinks"
    here.silent = set()
    marking = plan(here.pool, here.observed(), here.now)
    assert len(marking.annotate) == 2
    assert not marking.apply
    here.settle()
    assert names(here.ready_workers()) == {busy}


def test_a_cluster_in_which_pods_may_not_be_marked_is_scaled_down_all_the_same() -> None:
    here = cluster(pool(replicas=2), refuses_marks=True)
    here.settle()
    here.edit(lambda spec: spec.update(replicas=1))
    here.run(10)
    assert len(here.ready_workers()) == 1


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


def test_workers_that_give_other_bits_than_one_another_are_told_of_and_a_rollout_is_not() -> None:
    here = cluster(pool(replicas=3))
    here.settle()
    odd = sorted(names(here.ready_workers()))[1]
    here.fingerprints = {odd: "dp-other"}
    here.settle()
    degraded = here.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "WorkersDiffer")
    assert "dp-one from 2 workers" in degraded["message"]
    assert f"dp-other from 1 worker ({odd})" in degraded["message"]
    assert ready(here) == ("True", "AllWorkersReady")
    del here.fingerprints[odd]
    here.settle()
    here.fingerprints = dict.fromkeys(names(here.ready_workers()), "dp-before")
    here.edit(rolls)
    here.settle(
        check=lambda moment: require(moment.condition("Degraded")["status"] == "False", "a rollout is no fault")
    )


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


def test_a_cache_that_is_no_longer_wanted_stays_for_as_long_as_workers_are_made_that_mount_it() -> None:
    claim = ("PersistentVolumeClaim", "chat-models")
    model = pool()["spec"]["model"]
    here = cluster(pool(model={**model, "cache": {"size": "1Gi"}}))
    here.settle()
    assert claim in here.objects
    here.edit(lambda spec: spec.update(model=model, accelerator=TOO_LITTLE))
    here.settle()
    assert ready(here) == ("False", "CannotFit")
    assert claim in here.objects
    here.edit(lambda spec: spec.update(accelerator={"type": "cpu"}))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert claim not in here.objects


def test_a_node_with_a_gpu_too_old_for_the_engine_gets_no_worker_and_what_runs_hears_of_it_in_a_note() -> None:
    old = node("a-before-all-others", TESLA_T4)
    here = Cluster(gpu_pool(accelerator={"type": "nvidia"}, replicas=2), nodes=[old])
    here.resolution = resolved(here.pool)
    here.settle()
    assert ready(here) == ("False", "UnsupportedGPU")
    assert "node a-before-all-others" in here.condition("CapacityPlanned")["message"]
    assert not here.pods
    new = node("new", {"nvidia.com/gpu.memory": "81559"}, gpus=2)
    here.nodes = [new]
    here.settle()
    running, before, events = names(here.ready_workers()), here.status, len(here.events)
    assert ready(here) == ("True", "AllWorkersReady")
    here.nodes = [old, new]
    here.settle()
    assert names(here.ready_workers()) == running
    assert here.condition("CapacityPlanned")["message"].endswith(
        "; nodes with Tesla-T4 are left out: older than compute capability 8.0"
    )
    assert without_messages(here.status) == without_messages(before)
    assert len(here.events) == events
    here.edit(lambda spec: spec.update(contextTokens=256))
    here.settle()
    assert {pod["metadata"]["node"] for pod in here.workers()} == {"new"}
    here.nodes = [old]
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")


def wide_pool(*nodes: Object, **spec: object) -> Cluster:
    here = Cluster(gpu_pool(**{"accelerator": {"type": "nvidia"}, **spec}), nodes=list(nodes))
    here.resolution = resolved(here.pool, WIDE)
    here.settle()
    return here


def test_a_node_whose_gpu_does_not_run_the_model_gets_no_worker_and_what_runs_grows_beside_it() -> None:
    here = wide_pool(node("large", H100))
    running, before, events = names(here.ready_workers()), here.status, len(here.events)
    assert ready(here) == ("True", "AllWorkersReady")
    small = node("a-before-all-others", L4, gpus=4)
    here.nodes.append(small)
    here.settle()
    assert names(here.ready_workers()) == running
    assert here.condition("CapacityPlanned")["message"].endswith(
        "; nodes with NVIDIA-L4 are left out: the engine does not run this model on them"
    )
    assert without_messages(here.status) == without_messages(before)
    assert len(here.events) == events
    here.edit(lambda spec: spec.update(replicas=2))
    here.settle()
    assert here.condition("WaitingForGPU")["reason"] == "Unschedulable"
    here.nodes.append(node("larger", H100))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert {pod["metadata"]["node"] for pod in here.workers()} == {"large", "larger"}
    here.nodes = [small]
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady"), "nodes that are gone may come back"


def test_where_no_node_runs_the_model_as_the_spec_has_it_now_what_runs_is_left_alone() -> None:
    here = wide_pool(node("small", L4, gpus=2), kvType="q8_0")
    running = names(here.ready_workers())
    assert ready(here) == ("True", "AllWorkersReady")
    here.edit(lambda spec: spec.update(kvType="f16"))
    here.settle()
    assert (names(here.ready_workers()), ready(here)) == (running, ("False", "UnsupportedModel"))
    assert "node small's NVIDIA-L4: heads of 256" in here.condition("CapacityPlanned")["message"]
    here.nodes.append(node("large", H100))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert {pod["metadata"]["node"] for pod in here.workers()} == {"large"}
    assert here.status["plan"]["deviceBytes"] == 81_559 << 20


@pytest.mark.parametrize(("labels", "known"), [(TESLA_T4, facts()), (L4, WIDE)], ids=["old", "too little shared"])
def test_a_worker_that_crashes_where_a_gpu_had_no_labels_yet_is_made_elsewhere_once_it_has(
    labels: dict[str, str], known: ModelFacts
) -> None:
    def fate(pod: Object) -> Fate:
        return Fate(crashes="the CUDA engine does not run here") if pod["metadata"]["node"] == "old" else Fate()

    here = Cluster(gpu_pool(replicas=2), nodes=[node("new"), node("old")], fate=fate)
    here.resolution = resolved(here.pool, known)
    here.run(30)
    (serving,), made = names(here.ready_workers()), here.made_pods
    assert here.condition("WorkersAvailable")["status"] == "True"
    here.nodes = [node("new"), node("old", labels)]
    here.settle()
    assert {pod["metadata"].get("node") for pod in here.workers()} == {"new", None}
    assert here.condition("WaitingForGPU")["reason"] == "Unschedulable"
    here.nodes.append(node("late"))
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    assert {pod["metadata"]["node"] for pod in here.workers()} == {"new", "late"}
    assert serving in names(here.ready_workers())
    assert here.made_pods == made + 1
    assert [event.reason for event in here.events].count("WorkerFailed") == 1


def test_a_worker_that_serves_stays_on_a_node_whose_labels_would_not_get_it_any_more() -> None:
    here = Cluster(gpu_pool(), nodes=[node("n")])
    here.resolution = resolved(here.pool)
    here.settle()
    running, here.nodes = names(here.ready_workers()), [node("n", TESLA_T4)]
    here.settle()
    assert (names(here.ready_workers()), ready(here)) == (running, ("True", "AllWorkersReady"))
    (pod,) = here.workers()
    since = times.written(here.now)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]
    pod["status"]["containerStatuses"][0] |= {"ready": False, "state": {"running": {"startedAt": times.written(START)}}}
    found = plan(here.pool, here.observed(), here.now)
    assert found.delete == (), "it may hold sessions"
    assert "its readiness probe fails" in str(found.status["conditions"])


def test_a_worker_that_starts_again_stays_on_a_node_that_its_pools_own_affinity_would_not_admit_any_more() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    pool = gpu_pool(template={"affinity": {"nodeAffinity": required}})
    here = Cluster(pool, nodes=[node("n", {"zone": "a"})])
    here.resolution = resolved(here.pool)
    here.settle()
    assert ready(here) == ("True", "AllWorkersReady")
    here.nodes = [node("n", {"zone": "b"})]
    (pod,) = here.workers()
    since = times.written(here.now)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]
    pod["status"]["containerStatuses"][0] |= {
        "ready": False, "started": False, "restartCount": 1, "state": {"running": {"startedAt": since}},
        "lastState": {"terminated": {"exitCode": 1, "finishedAt": since}},
    }  # fmt: skip
    assert plan(here.pool, here.observed(), here.now).delete == ()


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("fault", ["spec", "model"])
def test_what_nodes_decided_is_remembered_while_a_spec_is_refused_or_a_model_is_read(
    suspended: bool, fault: str
) -> None:
    large = node("large", {"nvidia.com/gpu.memory": "81559"})
    small = node("small", {"nvidia.com/gpu.memory": "24576"}, gpus=1)
    here = Cluster(gpu_pool(accelerator={"type": "nvidia"}), nodes=[large, small])
    here.resolution = resolved(here.pool)
    here.settle()
    here.nodes = [large]
    here.edit(lambda spec: spec.update(suspend=suspended))
    here.settle()
    planned, read = here.status["plan"], here.resolution
    assert planned["deviceBytes"] == 24_576 << 20
    if fault == "spec":
        here.edit(lambda spec: spec.update(template={"resources": {"limits": {"cpu": "much"}}}))
    else:
        here.edit(lambda spec: spec["model"]["source"]["http"].update(url="http://models.example/other.gguf"))
    here.settle()
    assert here.condition("CapacityPlanned")["status"] != "True"
    here.edit(lambda spec: spec.pop("template", None))
    here.resolution = resolved(here.pool) if fault == "model" else read
    here.settle()
    assert here.condition("CapacityPlanned")["status"] == "True"
    assert here.status["plan"] == planned


def test_another_placement_forgets_what_nodes_decided_where_nothing_runs() -> None:
    here = Cluster(gpu_pool(accelerator={"type": "nvidia"}), nodes=[node("n", {"nvidia.com/gpu.memory": "24576"})])
    here.resolution = resolved(here.pool)
    here.settle()
    here.edit(lambda spec: spec.update(suspend=True))
    here.settle()
    here.edit(
        lambda spec: spec.update(template={"nodeSelector": {"zone": "a"}, "resources": {"limits": {"cpu": "much"}}})
    )
    here.settle()
    assert "plan" not in here.status


def without_messages(status: Object) -> Object:
    conditions = [{key: told for key, told in each.items() if key != "message"} for each in status["conditions"]]
    return {**status, "conditions": conditions}
