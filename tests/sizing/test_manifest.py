from __future__ import annotations

import json
from typing import Any

import pytest
from decodepool_sizing.errors import BadManifest
from decodepool_sizing.kv import KVType
from decodepool_sizing.manifest import DecodePool, load_manifest
from decodepool_sizing.workspace import MAX_STEP_ROWS

SMALLEST: dict[str, Any] = {
    "apiVersion": "decodepool.dev/v1alpha1",
    "kind": "DecodePool",
    "metadata": {"name": "smollm2"},
    "spec": {"model": {"source": {"hostPath": {"path": "/models/x.gguf"}}}, "contextTokens": 2048},
}
WHOLE = """
apiVersion: decodepool.dev/v1alpha1
kind: DecodePool
metadata:
  name: llama
  namespace: team
  labels: {app: chat}
  uid: 1f6c          # what a cluster adds is left alone
spec:
  model:
    source:
      http:
        url: https://models.example/llama.gguf
        sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
        secretRef: {name: hub, key: token}
    cache: {storageClassName: fast, size: 20Gi}
  contextTokens: 32768
  kvType: q8_0
  sessionsPerWorker: 16
  replicas: 2
  autoscaling: {minReplicas: 1, maxReplicas: 4, targetUtilizationPercent: 80, scaleDownDelaySeconds: 60}
  accelerator: {type: nvidia, resource: nvidia.com/mig-3g.40gb, count: 1, memory: 40Gi, product: NVIDIA-H100}
  cacheReserve: 4GiB
  drain: {timeoutSeconds: 120}
  suspend: true
  auth: {secretRef: {name: keys}}
  template:
    nodeSelector: {gpu: h100}
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
    resources: {requests: {cpu: "4"}}
    env: [{name: A, value: b}]
status: {replicas: 2}
"""


def changed(path: str, value: Any) -> str:
    """The smallest manifest as JSON, which is YAML, with one field set; None takes it away."""
    document = json.loads(json.dumps(SMALLEST))
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = place.setdefault(name, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


def test_the_smallest_manifest_has_defaults() -> None:
    spec = load_manifest(json.dumps(SMALLEST)).spec
    assert (spec.kv_type, spec.replicas, spec.suspend, spec.sessions_per_worker) == (KVType.F16, 1, False, None)
    assert (spec.accelerator.type, spec.accelerator.count, spec.drain.timeout_seconds) == ("nvidia", 1, 300)
    assert spec.model.source.host_path is not None


def test_the_whole_manifest_is_read() -> None:
    pool = load_manifest(WHOLE)
    assert (pool.metadata.name, pool.metadata.namespace) == ("llama", "team")
    assert pool.spec.kv_type is KVType.Q8_0
    assert pool.spec.cache_reserve == 4 << 30
    assert pool.spec.accelerator.memory == 40 << 30
    assert pool.spec.model.cache is not None
    assert pool.spec.model.cache.size == 20 << 30
    assert pool.spec.autoscaling is not None
    assert pool.spec.autoscaling.max_replicas == 4
    assert pool.spec.template is not None
    assert pool.spec.template.node_selector == {"gpu": "h100"}


FAULTS: dict[str, tuple[str, Any, str]] = {
    "another version": ("apiVersion", "decodepool.dev/v2", "apiVersion: should be 'decodepool.dev/v1alpha1'"),
    "another kind": ("kind", "Pod", "kind: this is a Pod, expected a DecodePool"),
    "no spec": ("spec", None, "spec: missing"),
    "no name": ("metadata", {}, "metadata.name: missing"),
    "a name in capitals": ("metadata.name", "Smol", "metadata.name: 'Smol' does not match"),
    "a name too long": ("metadata.name", "a" * 41, "metadata.name: String should have at most 40 characters"),
    "no source": (
        "spec.model.source",
        {},
        "spec.model.source: exactly one of http, pvc, image, hostPath is needed; given: none",
    ),
    "two sources": ("spec.model.source.http", {"url": "http://x/y"}, "spec.model.source: .* given: http, hostPath"),
    "a source of its own": ("spec.model.source.ftp", {}, "spec.model.source.ftp: unknown field"),
    "a URL of another kind": ("spec.model.source.http", {"url": "ftp://x/y"}, "spec.model.source.http.url: 'ftp"),
    "a path out of its volume": (
        "spec.model.source.pvc",
        {"claimName": "c", "path": "/etc/passwd"},
        "spec.model.source.pvc.path: '/etc/passwd' does not match",
    ),
    "a path with dots": (
        "spec.model.source.pvc",
        {"claimName": "c", "path": "a/../../b"},
        "spec.model.source.pvc.path: '..' has no place in it",
    ),
    "a relative host path": ("spec.model.source.hostPath.path", "x.gguf", "hostPath.path: 'x.gguf' does not match"),
    "a short digest": (
        "spec.model.source",
        {"http": {"url": "http://x/y", "sha256": "abc"}},
        "spec.model.source.http.sha256: 'abc' does not match",
    ),
    "context of zero": ("spec.contextTokens", 0, "spec.contextTokens: should be greater than or equal to 1, not 0"),
    "context past all": (
        "spec.contextTokens",
        10**12,
        "spec.contextTokens: should be less than or equal to 2147483648",
    ),
    "context as text": ("spec.contextTokens", "4096", "spec.contextTokens: should be a valid integer, not '4096'"),
    "context as a float": ("spec.contextTokens", 1.5, "spec.contextTokens: should be a valid integer, not 1.5"),
    "context as a whole float": ("spec.contextTokens", 4096.0, "spec.contextTokens: should be a valid integer"),
    "context as a boolean": ("spec.contextTokens", True, "spec.contextTokens: should be a valid integer, not True"),
    "no context": ("spec.contextTokens", None, "spec.contextTokens: missing"),
    "more sessions than a step has rows": (
        "spec.sessionsPerWorker",
        MAX_STEP_ROWS + 1,
        f"spec.sessionsPerWorker: should be less than or equal to {MAX_STEP_ROWS}",
    ),
    "no sessions": ("spec.sessionsPerWorker", 0, "spec.sessionsPerWorker: should be greater than or equal to 1"),
    "fewer than no replicas": ("spec.replicas", -1, "spec.replicas: should be greater than or equal to 0, not -1"),
    "an unknown kvType": ("spec.kvType", "q17", "spec.kvType: should be 'f16', 'f32' or 'q8_0', not 'q17'"),
    "least over most": (
        "spec.autoscaling",
        {"minReplicas": 5, "maxReplicas": 2},
        "spec.autoscaling: minReplicas 5 is more than maxReplicas 2",
    ),
    "no most": ("spec.autoscaling", {"minReplicas": 1}, "spec.autoscaling.maxReplicas: missing"),
    "a bad quantity": ("spec.cacheReserve", "a lot", "spec.cacheReserve: 'a lot' is not an amount of memory"),
    "a quantity of zero": ("spec.cacheReserve", 0, "spec.cacheReserve: not an amount of memory"),
    "a quantity as a boolean": ("spec.cacheReserve", True, "spec.cacheReserve: not an amount of memory"),
    "a quantity without end": ("spec.cacheReserve", 10**30, "spec.cacheReserve: not an amount of memory"),
    "a typo": ("spec.contextTokns", 5, "spec.contextTokns: unknown field, did you mean contextTokens?"),
    "a typo further in": (
        "spec.drain.timeoutSecond",
        5,
        "spec.drain.timeoutSecond: unknown field, did you mean timeout",
    ),
    "a snake": ("spec.kv_type", "f16", "spec.kv_type: unknown field, did you mean kvType?"),
    "a GPU on a CPU": ("spec.accelerator", {"type": "cpu", "product": "H100"}, "spec.accelerator: type cpu takes no"),
    "two CPUs": ("spec.accelerator", {"type": "cpu", "count": 2}, "spec.accelerator: type cpu takes no"),
    "a device nobody has": ("spec.accelerator.type", "tpu", "spec.accelerator.type: should be 'nvidia' or 'cpu'"),
    "suspended maybe": ("spec.suspend", "no", "spec.suspend: should be a valid boolean, not 'no'"),
    "a list for a mapping": ("spec.model", [1, [2]], "spec.model: .* not a list"),
    "labels in numbers": ("metadata.labels", {"a": 1}, "metadata.labels.a: should be a valid string"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_with_the_fields_path(name: str) -> None:
    path, value, text = FAULTS[name]
    with pytest.raises(BadManifest, match=text) as caught:
        load_manifest(changed(path, value))
    assert len(caught.value.faults) == 1
    assert "\n" not in caught.value.faults[0]


def test_all_faults_are_told_at_once() -> None:
    document = json.loads(changed("spec.replicas", -1))
    document["spec"] |= {"kvType": "q17", "contextTokens": 0}
    with pytest.raises(BadManifest) as caught:
        load_manifest(json.dumps(document))
    assert {fault.split(":")[0] for fault in caught.value.faults} == {
        "spec.replicas",
        "spec.kvType",
        "spec.contextTokens",
    }


TEXTS = {
    "nothing": ("", "0 documents in this text, expected one"),
    "two documents": (WHOLE + "\n---\n" + WHOLE, "2 documents in this text, expected one"),
    "a list": ("- a", "expected a mapping"),
    "numbers for keys": ("1: a", "expected a mapping"),
    "a key twice": ("a: 1\na: 2", "line 2, column 1: the key 'a' comes twice"),
    "a key twice further in": ("a:\n  b: 1\n  b: 2", "line 3, column 3: the key 'b' comes twice"),
    "a list for a key": ("? [a]\n: 1", "line 1"),
    "half a mapping": ("{", "line 1, column 2"),
    "a tab": ("a:\n\tb: 1", "line 2, column 1"),
    "a Python object": ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
    "an unknown alias": ("a: *b", "found undefined alias"),
    "too deep": ("[" * 5000, "nested too deep"),
    "a control character": ("a: \x01", "special characters are not allowed"),
    "too long": ("a" * (1 << 21), "the text has 2097152 characters, more than 1048576"),
    "a digit without end": ("a: " + "1" * 5000, "limit"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_manifest_is_refused_in_a_line(name: str) -> None:
    text, reason = TEXTS[name]
    with pytest.raises(BadManifest, match=reason) as caught:
        load_manifest(text)
    assert len(caught.value.faults) == 1


def test_a_bomb_of_aliases_is_refused_in_a_moment() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    with pytest.raises(BadManifest):
        load_manifest("\n".join(lines))


def test_a_merge_key_may_be_overridden() -> None:
    text = "x: &x {a: 1}\ny: {<<: *x, a: 2}"
    with pytest.raises(BadManifest, match="x: unknown field"):
        load_manifest(text)


def test_every_field_of_the_spec_is_described_and_every_number_bounded() -> None:
    schema = DecodePool.model_json_schema()
    for name, definition in schema["$defs"].items():
        if name == "Metadata":
            continue
        for field, rules in definition.get("properties", {}).items():
            assert rules.get("description") or rules.get("$ref"), f"{name}.{field} has no description"
            kinds = [rules, *rules.get("anyOf", [])]
            for kind in kinds:
                if kind.get("type") == "integer" and "x-kubernetes-int-or-string" not in rules:
                    assert {"minimum", "maximum"} <= set(kind), f"{name}.{field} has no bounds"
