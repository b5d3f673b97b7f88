"""What befalls pools in a cluster in memory: what they say of it, what they do, and what they leave alone."""

from __future__ import annotations

import pytest
from decodepool_operator.planner.state import Object

from tests.operator.lives import names, ready, require, rolls
from tests.operator.pods import component_of
from tests.operator.pools import (
    cluster,
    gpu_pool,
    host_path_pool,
    node,
    pool,
    reader_that_says,
    those_that,
    workers_that,
)
from tests.operator.simulation import Cluster, Fate, well

TROUBLES: dict[str, tuple[Fate, str, str]] = {
    "crash": (Fate(crashes="INFO start\ndecodepool: error: no such kernel"), "CrashLoopBackOff", "no such kernel"),
    "out of memory": (Fate(out_of_memory=True), "OOMKilled", "more memory than its limit"),
    "image": (Fate(pulls=False), "ImagePullBackOff", "image worker:1 cannot be pulled"),
}


@pytest.mark.parametrize("name", sorted(TROUBLES))
def test_what_pods_die_of_is_the_reason_and_stays_one_message(name: str) -> None:
    """A06, status writes that wake their writer: the kubelet's states alternate, and its texts have times in them."""
    fate, reason, said = TROUBLES[name]
    here = cluster(pool(replicas=2), fate=workers_that(fate))
    here.run(60)
    assert ready(here) == ("False", reason)
    assert said in here.condition("Ready")["message"]
    writes, events = here.writes, len(here.events)
    here.run(300)
    assert (here.writes, len(here.events)) == (writes, events)


def test_one_failed_pod_is_removed_and_replaced_by_one() -> None:
    """A05, failed pods pile up: UnexpectedAdmissionError, Evicted, Succeeded."""
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


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_a_pod_that_only_bears_a_workers_labels_is_none_and_is_left_alone(phase: str) -> None:
    """`kubectl debug --copy-to --keep-labels` makes one."""
    here = cluster(pool(replicas=2))
    here.settle()
    before = here.writes
    one = here.ready_workers()[0]
    copied = {**one["metadata"], "name": "debugged", "uid": "d1", "ownerReferences": [], "owner": ("Nobody", "x")}
    here.pods["debugged"] = {**one, "metadata": copied, "status": {**one["status"], "phase": phase}}
    here.fate = workers_that(Fate())
    here.run(60)
    assert "debugged" in here.pods
    assert ready(here) == ("True", "AllWorkersReady")
    assert here.writes == before


@pytest.mark.parametrize(
    ("component", "memory", "degraded"),
    [("worker", "failures", "WorkersFail"), ("gateway", "gatewayFailures", "GatewaysFail")],
)
def test_pods_that_fail_again_and_again_are_replaced_ever_more_slowly(
    component: str, memory: str, degraded: str
) -> None:
    """A05: a node that refuses pods, again and again, makes thousands of them."""
    here = cluster(pool(replicas=2), fate=those_that(component, Fate(fails="UnexpectedAdmissionError")))
    dead = []
    here.run(600, lambda moment: dead.append(sum(pod["status"]["phase"] == "Failed" for pod in moment.pods.values())))
    assert max(dead) <= 4
    assert here.made_pods < 40, "pods pile up: seven times two in ten minutes, and as many that were replaced at once"
    assert ready(here) == ("False", "UnexpectedAdmissionError")
    assert f"failures of {component}s in a row" in here.condition("Ready")["message"]
    assert here.condition("Degraded")["reason"] == degraded
    changes = len(here.history)
    here.run(200)
    assert len(here.history) - changes <= 3
    here.fate = well
    here.run(700)
    assert ready(here) == ("True", "AllWorkersReady")
    assert memory not in here.status


def test_a_gateway_that_fails_keeps_no_worker_from_being_made() -> None:
    here = cluster(pool(replicas=1))
    here.settle()
    here.fate = those_that("gateway", Fate(fails="Evicted"))
    here.run(60)
    assert here.condition("Degraded")["reason"] == "GatewaysFail"
    here.edit(lambda spec: spec.update(replicas=3))
    here.run(5)
    assert len(here.ready_workers()) == 3


def test_one_gateway_that_failed_is_removed_and_replaced_and_the_pool_stays_ready() -> None:
    here = cluster(pool())
    here.settle()
    victim = next(name for name, pod in here.pods.items() if component_of(pod) == "gateway")
    made = here.made_pods
    here.pods[victim]["status"].update(phase="Failed", reason="Evicted", message="low on disk", conditions=[])
    here.fate = lambda pod: Fate()
    here.settle(check=lambda moment: require(ready(moment)[0] == "True", "there is another gateway"))
    assert (here.made_pods, victim in here.pods) == (made + 1, False)
    assert [event.message for event in here.events if event.reason == "GatewayFailed"] == [
        f"{victim}: Evicted: low on disk"
    ]


FORBIDDEN = {
    "no such priority": ('pods "{pod}" is forbidden: no PriorityClass with name vip was found', "FailedCreate"),
    "a quota": ('pods "{pod}" is forbidden: exceeded quota: small, requested: pods=1', "QuotaExceeded"),
    "a policy": ('admission webhook "policy" denied the request: gateways need a team', "FailedCreate"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("had_gateways", [False, True])
def test_gateways_that_cannot_be_made_are_told_of_in_the_words_of_who_refuses(name: str, had_gateways: bool) -> None:
    refusal, reason = FORBIDDEN[name]
    here = cluster(pool(), refused_component="gateway", quota_message=None if had_gateways else refusal)
    here.run(30)
    here.quota_message = refusal
    here.edit(lambda spec: spec.update(gateway={"priorityClassName": "vip"}))
    here.run(30)
    words = refusal.partition(": ")[2]
    assert ready(here) == ("False", reason)
    assert words in here.condition("Ready")["message"]
    assert (here.condition("Degraded")["status"], here.condition("Degraded")["reason"]) == ("True", reason)
    writes = here.writes
    here.run(60)
    assert here.writes == writes, "what stays the same is written once"
    here.quota_message = None
    here.settle()
    assert (ready(here), here.condition("Degraded")["status"]) == (("True", "AllWorkersReady"), "False")


STUCK = {
    "its image": (Fate(pulls=False), "ImagePullBackOff", "image gateway:1 cannot be pulled"),
    "crashes": (Fate(crashes="no such option"), "CrashLoopBackOff", "gateway ended with 1: no such option"),
    "memory": (Fate(out_of_memory=True), "OOMKilled", "gateway was killed: it used more memory than its limit"),
}


@pytest.mark.parametrize("name", STUCK)
def test_one_gateway_that_is_stuck_is_told_though_the_pool_serves(name: str) -> None:
    fate, reason, said = STUCK[name]
    stuck: set[str] = set()
    here = cluster(pool(), fate=lambda pod: fate if pod["metadata"]["name"] in stuck else Fate())
    here.settle()
    victim = min(gateways(here))
    stayed = gateways(here) - {victim}
    del here.pods[victim]
    here.run(1)
    stuck |= gateways(here) - stayed
    here.run(30)
    assert ready(here) == ("True", "AllWorkersReady")
    told = here.condition("Degraded")
    assert (told["status"], told["reason"]) == ("True", reason)
    assert told["message"] == f"1 of 2 gateways ready: {said}"
    assert [event.type for event in here.events if event.reason == reason] == ["Warning"]
    writes = here.writes
    here.run(60)
    assert here.writes == writes
    stuck.clear()
    here.settle()
    assert here.condition("Degraded")["status"] == "False"


def test_one_gateway_that_gets_no_node_is_told_and_no_gpu_is_waited_for() -> None:
    here = cluster(gpu_pool(), nodes=[node("a")])
    here.settle()
    here.unschedulable = "0/1 nodes are available: 1 Insufficient cpu."
    del here.pods[min(gateways(here))]
    here.run(30)
    told = here.condition("Degraded")
    assert (ready(here)[0], told["reason"], here.condition("WaitingForGPU")["status"]) == (
        "True",
        "Unschedulable",
        "False",
    )
    assert told["message"] == "1 of 2 gateways ready: 0/1 nodes are available: 1 Insufficient cpu."


@pytest.mark.parametrize("name", STUCK)
def test_gateways_of_before_that_serve_are_told_where_none_of_the_present_spec_does(name: str) -> None:
    fate, reason, said = STUCK[name]
    here = cluster(pool())
    here.settle()
    old = gateways(here)
    here.fate = lambda pod: fate if pod["metadata"]["name"] in gateways(here) - old else Fate()
    here.edit(lambda spec: spec.update(gateway={"queueSeconds": 7}))
    here.run(40)
    words = f"0 of 2 gateways ready with the present spec, 2 of before: {said}"
    for condition in ("Ready", "Degraded"):
        assert (here.condition(condition)["reason"], here.condition(condition)["message"]) == (reason, words)
    here.fate = well
    here.settle()
    assert (ready(here), here.condition("Degraded")["status"]) == (("True", "AllWorkersReady"), "False")


def test_gateways_that_are_replaced_without_trouble_are_no_fault_and_serve_meanwhile() -> None:
    here = cluster(pool())
    here.settle()
    known = len(here.history)
    here.edit(lambda spec: spec.update(gateway={"queueSeconds": 7}))
    here.settle(check=lambda moment: require(moment.condition("Degraded")["status"] == "False", "on the way"))
    sentences = [condition["message"] for status in here.history[known:] for condition in status["conditions"]]
    assert "0 of 2 gateways ready with the present spec, 2 of before: still starting" in sentences
    assert not [each for each in sentences if "no gateway is ready" in each]


def test_a_pool_without_workers_says_nothing_of_its_gateways() -> None:
    here = cluster(pool(suspend=True), fate=those_that("gateway", Fate(pulls=False)))
    here.run(30)
    assert (ready(here), here.condition("Degraded")["status"]) == (("False", "Suspended"), "False")


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
    """A06, status writes that wake their writer."""
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


OF_NO_GPU = {
    "cores": "0/3 nodes are available: 3 Insufficient cpu.",
    "a volume": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found.",
    "a taint": "0/3 nodes are available: 3 node(s) had untolerated taint {team: x}.",
}


@pytest.mark.parametrize("name", OF_NO_GPU)
def test_a_worker_that_waits_for_something_else_does_not_wait_for_a_gpu(name: str) -> None:
    """An alert says to add GPUs."""
    here = cluster(gpu_pool(), nodes=[node("a")], unschedulable=OF_NO_GPU[name])
    here.settle()
    assert (here.condition("WaitingForGPU")["status"], ready(here)) == ("False", ("False", "Unschedulable"))
    assert OF_NO_GPU[name] in here.condition("WorkersAvailable")["message"]


def test_a_quota_of_pods_is_no_want_of_gpus() -> None:
    here = cluster(gpu_pool(), nodes=[node("a")], quota_message='pods "{pod}" is forbidden: exceeded quota: pods=10')
    here.run(30)
    assert (here.condition("WaitingForGPU")["status"], ready(here)) == ("False", ("False", "QuotaExceeded"))


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


def gateways(here: Cluster) -> set[str]:
    return {name for name, pod in here.pods.items() if component_of(pod) == "gateway"}


def test_gateways_are_made_anew_with_their_account_and_for_nothing_else() -> None:
    """The token that they have is of the account before, and is refused for good."""
    here = cluster(pool())
    here.settle()
    before = gateways(here)
    here.run(5)
    del here.objects["ServiceAccount", "chat-gateway"]
    here.settle()
    after = gateways(here)
    assert (len(after), before & after) == (2, set())
    writes = here.writes
    here.run(300)
    assert (here.writes, gateways(here)) == (writes, after), "once"
    here.edit(lambda spec: spec.update(replicas=2))
    here.settle()
    assert gateways(here) == after


def test_a_workers_account_that_was_made_anew_rolls_nothing() -> None:
    here = cluster(pool())
    here.settle()
    pods = set(here.pods)
    del here.objects["ServiceAccount", "chat-worker"]
    here.settle()
    assert set(here.pods) == pods


def test_there_are_as_many_gateways_as_the_spec_says() -> None:
    here = cluster(pool(gateway={"replicas": 3}))
    here.settle()
    assert (len(gateways(here)), ready(here)) == (3, ("True", "AllWorkersReady"))


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
