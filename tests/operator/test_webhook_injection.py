from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from decodepool_operator.planner.nodes import admits
from decodepool_operator.planner.resolution import source_key
from decodepool_operator.planner.state import Object
from decodepool_operator.webhook.injection import DRAIN_SECONDS, Denied, Injected, inject
from decodepool_sizing.facts import ModelFacts

from tests.operator.pools import facts, gpu_pool, host_path_pool, node, pool
from tests.operator.simulation import IMAGES
from tests.sizing.models import llama_shape


def app(**spec: Any) -> Object:
    """A pod that asks for the sidecar of `chat`."""
    base = {"containers": [{"name": "app", "image": "app:1", "ports": [{"name": "http", "containerPort": 80}]}]}
    return {"metadata": {"labels": {"decodepool.dev/sidecar-of": "chat"}}, "spec": {**base, **spec}}


def known(raw: Object, model: ModelFacts | None = None) -> Object:
    """A pool whose model has been read."""
    return {**raw, "status": {"model": {"source": source_key(raw), "facts": (model or facts()).to_json()}}}


def injected(pod: Object, raw: Object | None = None) -> Object:
    """The pod as the API server makes it of the patch."""
    outcome = inject(pod, known(host_path_pool()) if raw is None else raw, IMAGES, ())
    assert isinstance(outcome, Injected), outcome
    made = copy.deepcopy(pod)
    for operation in outcome.patch:
        _, parent, key = operation["path"].split("/")
        made[parent][key] = operation["value"]
    return made


def sidecar(pod: Object) -> Object:
    [found] = [each for each in pod["spec"]["initContainers"] if each["name"] == "decodepool"]
    return dict(found)


def test_a_pod_that_asks_gets_a_native_sidecar_and_keeps_all_it_has() -> None:
    made = injected(
        app(initContainers=[{"name": "migrate", "image": "app:1"}], volumes=[{"name": "tmp", "emptyDir": {}}])
    )
    assert sidecar(made)["restartPolicy"] == "Always"
    assert [each["name"] for each in made["spec"]["initContainers"]] == ["migrate", "decodepool"]
    assert made["spec"]["containers"] == app()["spec"]["containers"]
    assert made["spec"]["volumes"][0] == {"name": "tmp", "emptyDir": {}}


def test_a_pod_that_does_not_ask_is_left_alone() -> None:
    other = app()
    other["metadata"]["labels"] = {}
    assert inject(other, None, IMAGES, ()) == Injected(())


def test_a_pod_that_has_its_sidecar_is_left_alone() -> None:
    made = injected(app())
    assert inject(made, known(host_path_pool()), IMAGES, ()) == Injected(())


def test_the_sidecar_is_planned_as_the_pools_workers_are() -> None:
    arguments = sidecar(injected(app()))["args"]
    assert {"--context=128", "--sessions=8", "--kv-type=f16", "--device=cpu", "--name=chat"} <= set(arguments)
    assert f"--drain-timeout={DRAIN_SECONDS}" in arguments


def test_the_sidecar_serves_its_own_pod_alone() -> None:
    assert "--local-clients" in sidecar(injected(app()))["args"]


def test_names_of_what_is_brought_never_collide() -> None:
    made = injected(app(), known(pool()))
    volumes = [each["name"] for each in made["spec"]["volumes"]]
    containers = [each["name"] for each in made["spec"]["initContainers"]]
    assert all(name.startswith("decodepool") for name in [*volumes, *containers])
    assert {mount["name"] for each in made["spec"]["initContainers"] for mount in each["volumeMounts"]} <= set(volumes)
    assert sidecar(made)["ports"][0]["name"] == "decodepool"
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {sidecar(made)[probe]["httpGet"]["port"] for probe in probes} == {"decodepool"}


def test_a_model_from_a_url_is_fetched_before_the_sidecar_starts() -> None:
    names = [each["name"] for each in injected(app(), known(pool()))["spec"]["initContainers"]]
    assert names == ["decodepool-fetch", "decodepool"]


def test_the_sidecar_meets_the_restricted_profile_whatever_the_pod_is() -> None:
    for container in injected(app(securityContext={"runAsUser": 0}), known(pool()))["spec"]["initContainers"]:
        security = container["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False


def test_the_sidecar_does_not_get_the_applications_token() -> None:
    mounts = {mount["mountPath"] for mount in sidecar(injected(app()))["volumeMounts"]}
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in mounts


def test_the_pod_is_seen_by_the_operator_and_selected_by_no_service() -> None:
    labels = injected(app())["metadata"]["labels"]
    assert labels == {"decodepool.dev/sidecar-of": "chat", "decodepool.dev/pool": ""}


def test_a_gpu_sidecar_takes_the_pod_to_the_pools_nodes() -> None:
    raw = known(gpu_pool(accelerator={"type": "nvidia", "memory": "24Gi", "product": "NVIDIA-L4"}))
    made = injected(app(nodeSelector={"zone": "a"}, tolerations=[{"key": "x"}]), raw)
    assert made["spec"]["nodeSelector"] == {"zone": "a", "nvidia.com/gpu.product": "NVIDIA-L4"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in made["spec"]["tolerations"]
    assert sidecar(made)["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_what_the_workers_image_and_device_need_of_a_pod_comes_along() -> None:
    raw = known(host_path_pool(template={"imagePullSecrets": [{"name": "hub"}], "runtimeClassName": "nvidia"}))
    made = injected(app(imagePullSecrets=[{"name": "own"}]), raw)
    assert made["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "hub"}]
    assert made["spec"]["runtimeClassName"] == "nvidia"


def test_another_protocol_on_the_sidecars_port_is_in_nobodys_way() -> None:
    udp = container("app", ports=[{"containerPort": 8000, "protocol": "UDP"}])
    assert sidecar(injected(app(containers=[udp])))


def unresolved() -> Object:
    raw = host_path_pool()
    condition = {"type": "ModelResolved", "status": "False", "message": "no such file or directory"}
    return {**raw, "status": {"conditions": [condition]}}


def cpu_pool(**resources: Any) -> Object:
    return known(host_path_pool(template={"resources": resources}))


def refused_by_the_engine() -> Object:
    """A pool whose model was read, and has no exact kernels."""
    raw = host_path_pool()
    unsupported = replace(facts(), refusals={**facts().refusals, "cpu": ("tensor type IQ1_S has no kernels here",)})
    return {**raw, "status": {"model": {"source": source_key(raw), "facts": unsupported.to_json()}}}


def container(name: str, **parts: Any) -> Object:
    return {"name": name, "image": "app:1", **parts}


DENIED: dict[str, tuple[Object | None, Object, str]] = {
    "no such pool": (None, app(), "there is no such pool in this namespace"),
    "not read yet": (unresolved(), app(), "not known yet: no such file or directory"),
    "it cannot fit": (known(gpu_pool(accelerator={"type": "nvidia", "memory": "1Mi"})), app(), "CannotFit: "),
    "an unknown field": (known(host_path_pool(surprise=1)), app(), "not one this operator knows: spec.surprise"),
    "other nodes": (
        known(gpu_pool(accelerator={"type": "nvidia", "memory": "24Gi", "product": "NVIDIA-L4"})),
        app(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H200"}),
        "the pod's nodeSelector wants nvidia.com/gpu.product=NVIDIA-H200",
    ),
    "no amount of memory": (cpu_pool(limits={"memory": "abc"}), app(), "InvalidResources: template.resources: memory"),
    "a GPU for a CPU pool": (cpu_pool(limits={"nvidia.com/gpu": "1"}), app(), "InvalidResources: "),
    "no kernels for it": (refused_by_the_engine(), app(), "UnsupportedModel: tensor type IQ1_S"),
    "the sidecar's port": (
        known(host_path_pool()),
        app(containers=[container("web", ports=[{"containerPort": 8000}])]),
        "container web has port 8000, which is the sidecar's",
    ),
    "the sidecar's volume": (
        known(host_path_pool()),
        app(volumes=[{"name": "decodepool-tmp", "emptyDir": {}}]),
        "a volume named decodepool-tmp",
    ),
    "the sidecar's name": (
        known(host_path_pool()),
        app(containers=[container("decodepool")]),
        "a container named decodepool",
    ),
    "the sidecar's name on what is none": (
        known(host_path_pool()),
        app(initContainers=[container("decodepool")]),
        "a container named decodepool",
    ),
    "another runtime": (
        known(host_path_pool(template={"runtimeClassName": "nvidia"})),
        app(runtimeClassName="gvisor"),
        "the pod's runtimeClassName is gvisor, the pool's nvidia",
    ),
}


@pytest.mark.parametrize(("raw", "pod", "words"), DENIED.values(), ids=DENIED)
def test_a_sidecar_that_cannot_be_is_denied_with_the_reason(raw: Object | None, pod: Object, words: str) -> None:
    outcome = inject(pod, raw, IMAGES, ())
    assert isinstance(outcome, Denied)
    assert outcome.message.startswith("the sidecar of DecodePool chat: ")
    assert words in outcome.message


def test_the_pod_that_was_given_is_not_changed() -> None:
    pod = app()
    before = copy.deepcopy(pod)
    inject(pod, known(host_path_pool()), IMAGES, ())
    assert pod == before


@pytest.mark.parametrize("zone", [None, "a"], ids=["no affinity of its own", "one of its own"])
def test_the_pod_is_kept_off_gpus_that_are_too_old_beside_what_it_asks_itself(zone: str | None) -> None:
    own = {"key": "zone", "operator": "In", "values": [zone]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [own]}]}
    affinity = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    made = injected(app(**(affinity if zone else {})), known(gpu_pool()))["spec"]["affinity"]
    here = {"zone": "a"}
    assert admits(made, node("new", here))
    assert not admits(made, node("old", {**here, "nvidia.com/gpu.compute.major": "7"}))
    assert admits(made, node("elsewhere", {})) is (zone is None)


def test_the_pod_is_kept_off_gpus_that_do_not_run_the_model() -> None:
    wide = replace(facts(), shape=llama_shape(256))
    made = injected(app(), known(gpu_pool(), wide))["spec"]["affinity"]
    assert admits(made, node("large", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}))
    assert not admits(made, node("small", {"nvidia.com/gpu.product": "NVIDIA-L4"}))
