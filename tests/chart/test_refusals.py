"""A real API server refuses what the models refuse, in words for people, and takes what they take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault

from tests.sizing.manifest_cases import FAULTS, SMALLEST, WHOLE, changed

pytestmark = pytest.mark.cluster

ITS_OWN = {
    "another version": "kubectl finds no such resource",
    "another kind": "kubectl finds no such resource",
    "no name": "kubectl asks for one",
    "labels in numbers": "kubectl asks for texts",
    "context as a whole float": "JSON has one kind of number, and 4096.0 is 4096",
}
"""Faults that are not the schema's to find."""

TOLD: dict[str, str] = {
    "no source": "spec.model.source: Invalid value: exactly one of http, pvc, image, hostPath is needed; given: none",
    "two sources": "exactly one of http, pvc, image, hostPath is needed; given: http hostPath",
    "a source of its own": 'unknown field "spec.model.source.ftp"',
    "a URL of another kind": "spec.model.source.http.url: * must be an http:// or https:// URL without spaces",
    "a port that no host has": "spec.model.source.http.url: * its port at most 65535",
    "half a bracket": "spec.model.source.http.url: * must be an http:// or https:// URL without spaces",
    "no address in brackets": "spec.model.source.http.url: * what is in brackets must be an IPv6 address",
    "an affinity that is none": "spec.template.affinity.nodeAffinity: * must be of type object",
    "a path out of its volume": "spec.model.source.pvc.path: * must be a path within the volume",
    "a path with dots": "spec.model.source.pvc.path: * '..' has no place in it",
    "a host path with dots": "spec.model.source.hostPath.path: * '..' has no place in it",
    "a relative host path": "spec.model.source.hostPath.path: * must be an absolute path",
    "a short digest": "spec.model.source.http.sha256: * must be 64 digits of lower case hexadecimal",
    "a name in capitals": 'metadata.name: Invalid value: "Smol": a lowercase RFC 1123 subdomain',
    "a name that no Service may have": "metadata.name: a letter, then lower case letters",
    "a name too long": "metadata.name: at most 40 letters, since the names of a pool's objects add to it",
    "context of zero": "spec.contextTokens: Invalid value: 0: * greater than or equal to 1",
    "context as text": "spec.contextTokens: * must be of type integer",
    "fewer than no replicas": "spec.replicas: Invalid value: -1: * greater than or equal to 0",
    "an unknown kvType": 'spec.kvType: Unsupported value: "q17": supported values: "f16", "f32", "q8_0"',
    "least over most": "spec.autoscaling: * minReplicas must not be more than maxReplicas",
    "a bad quantity": 'spec.cacheReserve: Invalid value: "a lot": must be an amount of memory such as 80Gi',
    "a quantity of zero": "spec.cacheReserve: Invalid value: 0: must be an amount of memory such as 80Gi",
    "a typo": 'unknown field "spec.contextTokns"',
    "a typo further in": 'unknown field "spec.drain.timeoutSecond"',
    "a snake": 'unknown field "spec.kv_type"',
    "a cache of what is not fetched": "spec.model: * cache keeps what was fetched, so it goes with source.http alone",
    "a toleration with a typo": 'unknown field "spec.template.tolerations[0].efect"',
    "a variable without a name": "spec.template.env[0].name: Required value",
    "a GPU on a CPU": "spec.accelerator: * type cpu takes no resource, no product and no count but 1",
    "a device nobody has": 'spec.accelerator.type: Unsupported value: "tpu": supported values: "nvidia", "cpu"',
}
"""What must be told of some, `*` for anything."""


@pytest.fixture
def pool(server: Cluster) -> Iterator[dict[str, Any]]:
    """A pool on the server."""
    yield json.loads(server.kubectl("create", "-o", "json", "-f", "-", given=json.dumps(SMALLEST)))
    server.kubectl("delete", "decodepools", "--all")


def applied(server: Cluster, manifest: str) -> str:
    """What `kubectl apply` says when it is refused."""
    with pytest.raises(ClusterFault) as caught:
        server.kubectl("apply", "--validate=strict", "--dry-run=server", "-f", "-", given=manifest)
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ITS_OWN])
def test_what_the_models_refuse_the_api_server_refuses(name: str, server: Cluster) -> None:
    path, value, _ = FAULTS[name]
    told = applied(server, changed(path, value))
    assert "in body should match" not in told, "a pattern is no sentence"
    place = 0
    for part in TOLD.get(name, path.rpartition(".")[2]).split(" * "):
        place = told.find(part, place)
        assert place >= 0, f"{part!r} is not in {told!r}"


def test_no_variable_is_given_twice(server: Cluster) -> None:
    told = applied(server, changed("spec.template.env", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]))
    assert 'spec.template.env[1]: Duplicate value: {"name":"A"}' in told


def test_every_fault_that_is_not_the_schemas_is_one_of_the_table() -> None:
    assert set(ITS_OWN) | set(TOLD) <= set(FAULTS)


def test_the_whole_manifest_is_taken(server: Cluster) -> None:
    manifest = json.dumps({**yaml.safe_load(WHOLE), "metadata": {"name": "llama"}})
    server.kubectl("apply", "--validate=strict", "--dry-run=server", "-f", "-", given=manifest)


def test_the_smallest_pool_gets_its_defaults(pool: dict[str, Any]) -> None:
    assert {name: pool["spec"][name] for name in ("replicas", "kvType", "suspend", "drain", "accelerator")} == {
        "replicas": 1,
        "kvType": "f16",
        "suspend": False,
        "drain": {"timeoutSeconds": 300},
        "accelerator": {"type": "nvidia", "count": 1},
    }


def write_status(server: Cluster, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    server.kubectl("patch", "decodepool", "smollm2", "--subresource=status", "--type=merge", "-p", patch)


def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    time = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": time}


@pytest.mark.usefixtures("pool")
def test_columns_show_the_pool(server: Cluster) -> None:
    write_status(
        server,
        {
            "model": {"name": "SmolLM2"},
            "workers": "1/2",
            "sessions": {"summary": "3/8"},
            "plan": {"reserve": "720.0 MiB"},
            "accelerator": "nvidia.com/gpu",
            "conditions": [condition("Ready", "False", "Rolling"), condition("Degraded", "True", "Other")],
        },
    )
    header, row = server.kubectl("get", "dpool", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "MODEL", "SESSIONS", "READY", "CONTEXT", "AGE", "RESERVE", "GPU", "REASON"]
    shown = row.split()
    assert shown[:5] == ["smollm2", "SmolLM2", "3/8", "1/2", "2048"]
    assert shown[6:] == ["720.0", "MiB", "nvidia.com/gpu", "Rolling"]


@pytest.mark.usefixtures("pool")
def test_scaling_goes_through_the_subresource_and_shows_the_selector(server: Cluster) -> None:
    write_status(server, {"replicas": 1, "selector": "decodepool.dev/pool=smollm2"})
    server.kubectl("scale", "decodepool", "smollm2", "--replicas=3")
    path = "/apis/decodepool.dev/v1alpha1/namespaces/default/decodepools/smollm2/scale"
    scale = json.loads(server.kubectl("get", "--raw", path))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 1, "selector": "decodepool.dev/pool=smollm2"}


def test_a_status_changes_no_generation_and_a_spec_no_status(server: Cluster, pool: dict[str, Any]) -> None:
    write_status(server, {"workers": "0/1"})
    patch = json.dumps({"spec": {"replicas": 2}, "status": {"workers": "9/9"}})
    server.kubectl("patch", "decodepool", "smollm2", "--type=merge", "-p", patch)
    seen = server.get("decodepool", "smollm2")
    assert seen["status"] == {"workers": "0/1"}
    assert seen["metadata"]["generation"] == pool["metadata"]["generation"] + 1


FETCHED = {"source": {"hostPath": None, "http": {"url": "http://models.example/a.gguf"}}}
CHANGES: dict[str, tuple[dict[str, Any], str | None]] = {
    "another class": ({"storageClassName": "slow"}, "storageClassName cannot change"),
    "no class": ({"storageClassName": None}, "storageClassName cannot change"),
    "another mode": ({"accessMode": "ReadWriteMany"}, "accessMode cannot change"),
    "a smaller volume": ({"size": "3Gi"}, "size cannot shrink"),
    "a smaller volume in other units": ({"size": "4000MB"}, "size cannot shrink"),
    "a smaller volume in bytes": ({"size": (4 << 30) - 1}, "size cannot shrink"),
    "the same in other units": ({"size": 4 << 30}, None),
    "the same in a unit with a letter more": ({"size": "4194304KiB"}, None),
    "a larger volume": ({"size": "5GiB"}, None),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("pool")
def test_a_claim_cannot_change_what_claims_cannot(name: str, server: Cluster) -> None:
    change, refusal = CHANGES[name]
    patch_spec(server, {"model": {**FETCHED, "cache": {"size": "4Gi", "storageClassName": "fast"}}})
    if refusal is None:
        patch_spec(server, {"model": {"cache": change}})
        return
    with pytest.raises(ClusterFault, match=refusal):
        patch_spec(server, {"model": {"cache": change}})
    patch_spec(server, {"model": {"cache": None}})
    patch_spec(server, {"model": {"cache": {"size": "4Gi", **change}}})


def patch_spec(server: Cluster, spec: dict[str, Any]) -> None:
    server.kubectl("patch", "decodepool", "smollm2", "--type=merge", "-p", json.dumps({"spec": spec}))
