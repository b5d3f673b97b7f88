"""The objects a pool owns: safe to run, told exactly what was planned, and reached by those who should."""

from __future__ import annotations

from typing import Any

import pytest
from decodepool_operator.names import WORKER
from decodepool_operator.planner.capacity import Capacity, find_capacity
from decodepool_operator.planner.differences import needs_writing, stamped
from decodepool_operator.planner.nodes import worker_affinity
from decodepool_operator.planner.objects.access import accounts
from decodepool_operator.planner.objects.common import STOP_DELAY_SECONDS, STOP_MARGIN_SECONDS, TEMPLATE
from decodepool_operator.planner.objects.gateway import RESOURCES, gateway_deployment, gateway_template
from decodepool_operator.planner.objects.model_files import cache_claim, model_name
from decodepool_operator.planner.objects.network import (
    client_service,
    disruption_budget,
    network_policy,
    workers_service,
)
from decodepool_operator.planner.objects.reader_job import reader_job
from decodepool_operator.planner.objects.worker import startup_seconds, worker_deployment, worker_template
from decodepool_operator.planner.plan import plan
from decodepool_operator.planner.pools import read_pool
from decodepool_operator.planner.state import Images, Object, Scraping

from tests.operator.pools import facts, gpu_pool, host_path_pool, observed, pool
from tests.operator.simulation import IMAGES, START

KNOWN = facts()
SHA = "ab" * 32
SOURCES: dict[str, Object] = {
    "http": {"http": {"url": "https://hub.example/a/b%20c.gguf?sig=1", "sha256": SHA, "secretRef": {"name": "hub"}}},
    "hostPath": {"hostPath": {"path": "/srv/models/b.gguf"}},
    "pvc": {"pvc": {"claimName": "models", "path": "a/b.gguf"}},
    "image": {"image": {"reference": "registry.example/models:1", "path": "/a/b.gguf"}},
}


def worker(raw: Object, file_bytes: int = 1 << 30, images: Images = IMAGES) -> Object:
    planned = read_pool(raw)
    found = find_capacity(planned, KNOWN, ())
    assert isinstance(found, Capacity), found
    return worker_deployment(planned, worker_template(planned, found, images, file_bytes), replicas=1, unavailable=1)


def gateway(raw: Object) -> Object:
    planned = read_pool(raw)
    return gateway_deployment(planned, gateway_template(planned, IMAGES), replicas=2)


def template(made: Object) -> Object:
    found: Object = made["spec"]["template"]
    return found


def container(made: Object) -> Object:
    found: Object = template(made)["spec"]["containers"][0]
    return found


def with_source(kind: str, **spec: Any) -> Object:
    return pool(model={"source": SOURCES[kind]}, **spec)


PODS = {
    "worker": template(worker(gpu_pool())),
    "worker that fetches": template(worker(with_source("http"))),
    "gateway": template(gateway(pool(auth={"secretRef": {"name": "keys"}}))),
    "reader": reader_job(read_pool(with_source("pvc")), IMAGES)["spec"]["template"],
}


@pytest.mark.parametrize("name", sorted(PODS))
def test_every_pod_meets_the_restricted_profile(name: str) -> None:
    spec = PODS[name]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in [*spec.get("initContainers", ()), *spec["containers"]]:
        security = each["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert each["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert each["resources"]["limits"]["memory"]
    allowed = {"emptyDir", "persistentVolumeClaim", "secret", "image"}
    assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


@pytest.mark.parametrize("name", sorted(PODS))
def test_no_container_is_process_1_of_its_namespace(name: str) -> None:
    """One that is told to end while it starts has no handler yet, and as process 1 would never hear of it."""
    assert PODS[name]["spec"]["shareProcessNamespace"] is True


@pytest.mark.parametrize("name", sorted(PODS))
def test_every_mount_has_its_volume(name: str) -> None:
    spec = PODS[name]["spec"]
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for each in [*spec.get("initContainers", ()), *spec["containers"]]:
        assert {mount["name"] for mount in each["volumeMounts"]} <= set(volumes)


def test_a_worker_is_told_exactly_what_was_planned() -> None:
    made = worker(gpu_pool(sessionsPerWorker=None, cacheReserve="1Gi", auth={"secretRef": {"name": "keys"}}))
    planned = find_capacity(read_pool(gpu_pool(sessionsPerWorker=None, cacheReserve="1Gi")), KNOWN, ())
    assert isinstance(planned, Capacity)
    arguments = container(made)["args"]
    assert arguments[0] == "serve"
    assert {
        f"--sessions={planned.plan.sessions}", "--context=128", "--kv-type=f16", "--device=cuda",
        f"--memory={24 << 30}", f"--cache-reserve={1 << 30}", "--drain-timeout=30", "--api-keys=/keys/keys",
        "--worker-tag-of=$(POD_UID)",
    } <= set(arguments)  # fmt: skip
    assert container(made)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container(made)["resources"]["requests"]["nvidia.com/gpu"] == "1"


def test_a_gpu_worker_runs_the_cuda_image_and_tolerates_the_gpus_taint() -> None:
    assert container(worker(gpu_pool()))["image"] == IMAGES.worker_cuda
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in template(worker(gpu_pool()))["spec"]["tolerations"]
    assert "tolerations" not in template(worker(pool()))["spec"]
    assert container(worker(pool()))["image"] == IMAGES.worker


def test_a_slice_asks_for_its_own_resource() -> None:
    slice_ = "nvidia.com/mig-1g.10gb"
    made = worker(gpu_pool(accelerator={"type": "nvidia", "resource": slice_, "product": "NVIDIA-H100"}))
    limits = container(made)["resources"]["limits"]
    assert (limits[slice_], "nvidia.com/gpu" in limits) == ("1", False)
    assert template(made)["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100"}


def test_memory_is_asked_for_as_it_is_limited() -> None:
    """A request without a limit lets one worker starve a node; a lower request lets it be killed."""
    for raw in (pool(), gpu_pool(), gpu_pool(template={"resources": {"limits": {"memory": "9Gi"}}})):
        resources = container(worker(raw))["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_workers_are_replaced_in_place_and_gateways_beside_each_other() -> None:
    assert worker(pool())["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert gateway(pool())["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


GATEWAYS: dict[str, Object] = {
    "none": {"replicas": 0},
    "one": {"replicas": 1},
    "nine": {"replicas": 9},
    "autoscaled": {"autoscaling": {"maxReplicas": 4}},
    "suspended": {"suspend": True},
}


@pytest.mark.parametrize("name", sorted(GATEWAYS))
def test_scaling_workers_ends_no_gateway(name: str) -> None:
    """Streams run through it, those of workers that stay among them."""
    made = gateway(pool(**GATEWAYS[name]))
    assert made == gateway(pool())
    assert made["spec"]["replicas"] == 2


TEAM: Object = {"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
GPUS_TAINT: Object = {"key": "nvidia.com/gpu", "operator": "Exists"}
TOLERATED: dict[str, tuple[Object, list[Object] | None]] = {
    "nothing said": ({}, None),
    "workers of a team": ({"template": {"tolerations": [TEAM]}}, [TEAM]),
    "workers on GPUs of a team": ({"template": {"tolerations": [GPUS_TAINT, TEAM]}}, [TEAM]),
    "its own": ({"template": {"tolerations": [TEAM]}, "gateway": {"tolerations": [GPUS_TAINT]}}, [GPUS_TAINT]),
    "none at all": ({"template": {"tolerations": [TEAM]}, "gateway": {"tolerations": []}}, None),
}


@pytest.mark.parametrize("name", TOLERATED)
def test_gateways_run_where_every_node_is_tainted_and_off_gpus(name: str) -> None:
    spec, tolerated = TOLERATED[name]
    made = template(gateway(gpu_pool(**spec)))["spec"]
    assert made.get("tolerations") == tolerated
    assert not {"nodeSelector", "priorityClassName", "affinity"} & set(made)


def test_gateways_are_placed_and_wait_as_the_spec_says() -> None:
    given = {"nodeSelector": {"pool": "cpu"}, "priorityClassName": "high", "queueSeconds": 120}
    made = gateway(pool(gateway=given))
    spec = template(made)["spec"]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "cpu"}, "high")
    assert "--queue-timeout=120" in container(made)["args"]
    assert "--queue-timeout=10" in container(gateway(pool()))["args"]


SIZES: dict[str, tuple[Object | None, Object]] = {
    "nothing said": (None, RESOURCES),
    "more memory": ({"limits": {"memory": "2Gi"}}, {**RESOURCES, "limits": {"memory": "2Gi"}}),
    "a larger request": (
        {"requests": {"memory": "1Gi", "cpu": 1}},
        {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    ),
    "less": (
        {"limits": {"memory": "64Mi"}},
        {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_gateways_are_as_large_as_the_spec_says(name: str) -> None:
    given, resources = SIZES[name]
    assert container(gateway(pool(gateway={"resources": given} if given else {})))["resources"] == resources


def test_a_deployment_that_somebody_paused_goes_on() -> None:
    """`kubectl rollout pause` would block every repair without a word."""
    for made in (worker(pool()), gateway(pool())):
        stamp = stamped(made)
        assert not needs_writing(stamp, {**stamp, "spec": {key: each for key, each in made["spec"].items() if each}})
        assert needs_writing(stamp, {**stamp, "spec": {**made["spec"], "paused": True}})


@pytest.mark.parametrize("seconds", [0, 30, 86_400])
def test_a_pod_has_longer_to_end_than_it_takes_to_drain(seconds: int) -> None:
    """A13, a pod that goes cuts live sessions: with less, the kubelet would cut what the worker still lets run."""
    raw = pool(drain={"timeoutSeconds": seconds})
    for made in (worker(raw), gateway(raw)):
        grace = template(made)["spec"]["terminationGracePeriodSeconds"]
        assert grace >= seconds + STOP_DELAY_SECONDS + STOP_MARGIN_SECONDS > seconds
        assert container(made)["lifecycle"]["preStop"]["sleep"]["seconds"] == STOP_DELAY_SECONDS
        assert f"--drain-timeout={seconds}" in container(made)["args"]


def test_each_probe_asks_what_it_is_for() -> None:
    """A16, a slow load is no hang: liveness is not asked before the model is there; a large one has hours."""
    made = container(worker(pool(), file_bytes=800 * 10**9))
    assert made["startupProbe"]["httpGet"]["path"] == made["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert made["livenessProbe"]["httpGet"]["path"] == "/healthz"
    allowed = made["startupProbe"]["failureThreshold"] * made["startupProbe"]["periodSeconds"]
    assert allowed >= startup_seconds(800 * 10**9, IMAGES) - 2 > 4 * 3600
    assert startup_seconds(0, IMAGES) >= 20 * 60
    assert all(made[name]["timeoutSeconds"] >= 5 for name in ("startupProbe", "readinessProbe", "livenessProbe"))


def test_what_hangs_is_ended_soon_however_long_a_drain_may_take() -> None:
    raw = pool(drain={"timeoutSeconds": 3600})
    for made in (container(worker(raw)), container(gateway(raw))):
        for name in ("startupProbe", "livenessProbe"):
            assert made[name]["terminationGracePeriodSeconds"] == STOP_MARGIN_SECONDS < 60


def test_a_worker_has_no_token_and_a_gateway_may_look_for_workers_alone() -> None:
    assert template(worker(pool()))["spec"]["automountServiceAccountToken"] is False
    made = {(each["kind"], each["metadata"]["name"]): each for each in accounts(read_pool(pool()))}
    assert made["ServiceAccount", "chat-worker"]["automountServiceAccountToken"] is False
    assert made["Role", "chat-gateway"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]


FILES: dict[str, tuple[str, Object, str]] = {
    "http": (f"/models/{SHA[:16]}.gguf", {"emptyDir": {}}, "b c"),
    "hostPath": ("/models/b.gguf", {"hostPath": {"path": "/srv/models"}}, "b"),
    "pvc": ("/models/a/b.gguf", {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}, "b"),
    "image": (
        "/models/a/b.gguf",
        {"image": {"reference": "registry.example/models:1", "pullPolicy": "IfNotPresent"}},
        "b",
    ),
}


@pytest.mark.parametrize("kind", sorted(FILES))
def test_the_model_comes_from_its_source_and_is_only_read(kind: str) -> None:
    path, volume, name = FILES[kind]
    made = worker(with_source(kind))
    assert container(made)["args"][1] == path
    assert {"name": "models", **volume} in template(made)["spec"]["volumes"]
    mount = next(each for each in container(made)["volumeMounts"] if each["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert model_name(read_pool(with_source(kind))) == name


def test_a_url_is_fetched_before_with_its_digest_and_its_token() -> None:
    (fetch,) = template(worker(with_source("http")))["spec"]["initContainers"]
    assert fetch["args"] == [
        "fetch", "https://hub.example/a/b%20c.gguf?sig=1", f"--output=/models/{SHA[:16]}.gguf", f"--sha256={SHA}",
        "--bearer-file=/source/token",
    ]  # fmt: skip
    assert "initContainers" not in template(worker(with_source("pvc")))["spec"]


@pytest.mark.parametrize("kind", sorted(FILES))
def test_a_worker_asks_for_the_nodes_disk_where_it_fetches_to_it(kind: str) -> None:
    requests = container(worker(with_source(kind), file_bytes=5 << 30))["resources"]["requests"]
    assert requests.get("ephemeral-storage") == (str(6 << 30) if kind == "http" else None)


def test_a_worker_that_fetches_to_a_claim_asks_for_no_disk() -> None:
    raw = pool(model={"source": SOURCES["http"], "cache": {"size": "20Gi"}})
    assert "ephemeral-storage" not in container(worker(raw))["resources"]["requests"]


@pytest.mark.parametrize("part", ["limits", "requests"])
def test_the_templates_disk_wins(part: str) -> None:
    raw = with_source("http", template={"resources": {part: {"ephemeral-storage": "3Gi"}}})
    made = container(worker(raw, file_bytes=5 << 30))["resources"]
    asked = {each: made[each].get("ephemeral-storage") for each in ("limits", "requests")}
    assert asked == {"limits": None, "requests": None, part: "3Gi"}


def test_a_cache_makes_room_for_the_next_model() -> None:
    for cache in (None, {"size": "20Gi"}):
        raw = pool(model={"source": SOURCES["http"], **({"cache": cache} if cache else {})})
        (fetch,) = template(worker(raw))["spec"]["initContainers"]
        assert ("--make-room" in fetch["args"]) is bool(cache)


def test_a_claim_that_exists_is_asked_for_nothing_that_cannot_change() -> None:
    raw = pool(replicas=2, model={"source": SOURCES["http"], "cache": {"size": "20Gi"}})
    wanted = cache_claim(read_pool({**raw, "spec": {**raw["spec"], "replicas": 1}}))
    assert wanted is not None
    assert wanted["spec"]["resources"]["requests"]["storage"] == str(20 << 30)
    live = {**wanted, "spec": {**wanted["spec"], "storageClassName": "standard"}}
    applied = plan(raw, observed(raw, children=(live,)), START).apply
    claim = next(each for each in applied if each["kind"] == "PersistentVolumeClaim")
    assert (claim["spec"]["accessModes"], claim["spec"]["storageClassName"]) == (["ReadWriteOnce"], "standard")


def test_the_template_is_merged_and_the_pools_own_wins() -> None:
    given: Object = {
        "labels": {"team": "x", "decodepool.dev/pool": "another"},
        "annotations": {"a": "b"},
        "nodeSelector": {"zone": "a"},
        "env": [{"name": "POD_UID", "value": "faked"}, {"name": "MORE", "value": "1"}],
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "serviceAccountName": "mine",
        "imagePullSecrets": [{"name": "pull"}],
        "image": "mine:1",
    }
    pod = template(worker(pool(template=given)))
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"]["decodepool.dev/pool"] == "chat"
    assert pod["metadata"]["annotations"]["a"] == "b"
    spec, own = pod["spec"], pod["spec"]["containers"][0]
    assert (spec["priorityClassName"], spec["runtimeClassName"], spec["serviceAccountName"]) == (
        "high",
        "nvidia",
        "mine",
    )
    assert [each["name"] for each in own["env"]] == ["POD_UID", "XDG_CACHE_HOME", "MORE"]
    assert "valueFrom" in own["env"][0]
    assert (own["image"], spec["imagePullSecrets"]) == ("mine:1", [{"name": "pull"}])


def test_a_template_changes_its_digest_and_a_status_does_not() -> None:
    def stamp(raw: Object) -> str:
        found: str = template(worker(raw))["metadata"]["annotations"][TEMPLATE]
        return found

    raw = pool()
    assert stamp(raw) == stamp({**raw, "status": {"replicas": 9, "sessions": {"active": 3}}})
    assert stamp(raw) == stamp(pool(replicas=7))
    assert stamp(raw) != stamp(pool(contextTokens=64))


def test_workers_are_reached_by_their_gateways_the_operator_and_monitoring_alone() -> None:
    policy = network_policy(read_pool(pool()), "decodepool-system")
    (rule,) = policy["spec"]["ingress"]
    (operator,) = [each for each in rule["from"] if "operator" in str(each["podSelector"])]
    assert operator["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "decodepool-system"}}
    assert len(rule["from"]) == 3
    assert all("podSelector" in source for source in rule["from"])
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]


def test_services_select_what_deployments_make() -> None:
    chosen = read_pool(pool())
    for service, made in (
        (client_service(chosen), gateway(pool())),
        (workers_service(chosen), worker(pool())),
    ):
        assert service["spec"]["selector"].items() <= template(made)["metadata"]["labels"].items()
        assert made["spec"]["selector"]["matchLabels"].items() <= template(made)["metadata"]["labels"].items()
    assert workers_service(chosen)["spec"]["clusterIP"] == "None"
    assert disruption_budget(chosen, WORKER)["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_every_object_goes_with_the_pool_and_says_whose_it_is() -> None:
    raw = host_path_pool()
    for each in plan(raw, observed(raw, has_pod_monitors=True), START).apply:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("DecodePool", "pool-uid", True)
        labels = each["metadata"]["labels"]
        assert labels["decodepool.dev/pool"] == "chat"
        assert labels["app.kubernetes.io/managed-by"] == "decodepool-operator"
        assert "finalizers" not in each["metadata"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_pod_monitor_is_made_where_its_kind_is_known(wanted: bool) -> None:
    raw = pool()
    kinds = {each["kind"] for each in plan(raw, observed(raw, has_pod_monitors=wanted), START).apply}
    assert ("PodMonitor" in kinds) is wanted


def test_a_prometheus_that_selects_by_labels_finds_the_pools_monitors_too() -> None:
    scraping = Scraping({"release": "stack", "decodepool.dev/pool": "not this"}, 15)
    made = plan(pool(), observed(pool(), has_pod_monitors=True, scraping=scraping), START).apply
    (monitor,) = [each for each in made if each["kind"] == "PodMonitor"]
    labels = monitor["metadata"]["labels"]
    assert (labels["release"], labels["decodepool.dev/pool"]) == ("stack", "chat")
    assert [each["interval"] for each in monitor["spec"]["podMetricsEndpoints"]] == ["15s"]


def test_the_reader_goes_where_a_worker_would() -> None:
    raw = pool(
        model={"source": SOURCES["hostPath"]},
        template={"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]},
    )
    pod = reader_job(read_pool(raw), IMAGES)["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"zone": "a"}, [{"operator": "Exists"}])
    assert pod["containers"][0]["command"][-1] == "/models/b.gguf"
    assert pod["restartPolicy"] == "Never"
    of_gpus = read_pool(gpu_pool(model={"source": SOURCES["hostPath"]}))
    assert reader_job(of_gpus, IMAGES)["spec"]["template"]["spec"]["affinity"] == worker_affinity(of_gpus)
