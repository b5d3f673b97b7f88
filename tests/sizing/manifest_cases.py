"""Manifests, sound and broken: read by the models in tests/sizing, and refused by a real API server in tests/chart."""

from __future__ import annotations

import json
from typing import Any

from decodepool_sizing.workspace import MAX_SESSIONS

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
    cache: {storageClassName: fast, size: 20Gi, accessMode: ReadWriteMany}
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
  gateway:
    replicas: 3
    queueSeconds: 120
    resources: {limits: {memory: 2Gi}}
    tolerations: [{key: team, operator: Exists}]
    nodeSelector: {pool: cpu}
    priorityClassName: high
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


FAULTS: dict[str, tuple[str, Any, str]] = {
    "another version": ("apiVersion", "decodepool.dev/v2", "apiVersion: should be 'decodepool.dev/v1alpha1'"),
    "another kind": ("kind", "Pod", "kind: this is a Pod, expected a DecodePool"),
    "no spec": ("spec", None, "spec: missing"),
    "no name": ("metadata", {}, "metadata.name: missing"),
    "a name in capitals": ("metadata.name", "Smol", "metadata.name: 'Smol' does not match"),
    "a name that no Service may have": ("metadata.name", "3b", "metadata.name: '3b' does not match"),
    "a name too long": ("metadata.name", "a" * 41, "metadata.name: String should have at most 40 characters"),
    "no source": (
        "spec.model.source",
        {},
        "spec.model.source: exactly one of http, pvc, image, hostPath is needed; given: none",
    ),
    "two sources": ("spec.model.source.http", {"url": "http://x/y"}, "spec.model.source: .* given: http, hostPath"),
    "a source of its own": ("spec.model.source.ftp", {}, "spec.model.source.ftp: unknown field"),
    "a URL of another kind": ("spec.model.source.http", {"url": "ftp://x/y"}, "spec.model.source.http.url: 'ftp"),
    "a port that no host has": (
        "spec.model.source",
        {"http": {"url": "http://h:99999/x.gguf"}},
        "spec.model.source.http.url: 'http://h:99999/x.gguf' does not match",
    ),
    "half a bracket": (
        "spec.model.source",
        {"http": {"url": "http://[::1/x"}},
        "spec.model.source.http.url: 'http://.::1/x' does not match",
    ),
    "no address in brackets": (
        "spec.model.source",
        {"http": {"url": "http://[1::2::3]/x"}},
        "spec.model.source.http.url: what is in brackets must be an IPv6 address",
    ),
    "a host that reads as a path": (
        "spec.model.source",
        {"http": {"url": "http://h\u2100/x"}},
        "spec.model.source.http.url: .* does not match",
    ),
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
    "a host path with dots": ("spec.model.source.hostPath.path", "/a/../b", "hostPath.path: '..' has no place in it"),
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
        MAX_SESSIONS + 1,
        f"spec.sessionsPerWorker: should be less than or equal to {MAX_SESSIONS}",
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
    "a cache of what is not fetched": ("spec.model.cache", {"size": "4Gi"}, "spec.model: cache keeps what was fetched"),
    "no gateway": ("spec.gateway", {"replicas": 0}, "spec.gateway.replicas: should be greater than or equal to 1"),
    "a wait of hours": ("spec.gateway", {"queueSeconds": 3601}, "spec.gateway.queueSeconds: should be less than or"),
    "a gateway with an image": ("spec.gateway", {"image": "a:1"}, "spec.gateway.image: unknown field"),
    "a gateway's toleration with a typo": (
        "spec.gateway",
        {"tolerations": [{"efect": "NoSchedule"}]},
        "spec.gateway.tolerations.0: efect: unknown field, did you mean effect?",
    ),
    "a volume that many may only read": (
        "spec.model",
        {"source": {"http": {"url": "http://x/y"}}, "cache": {"size": "4Gi", "accessMode": "ReadOnlyMany"}},
        "spec.model.cache.accessMode: should be 'ReadWriteOnce' or 'ReadWriteMany', not 'ReadOnlyMany'",
    ),
    "a toleration with a typo": (
        "spec.template.tolerations",
        [{"key": "nvidia.com/gpu", "efect": "NoSchedule"}],
        "spec.template.tolerations.0: efect: unknown field, did you mean effect?",
    ),
    "an affinity that is none": (
        "spec.template.affinity",
        {"nodeAffinity": "x"},
        "spec.template.affinity: nodeAffinity: should be a valid dictionary or instance of NodeAffinity, not 'x'",
    ),
    "an affinity with a typo": (
        "spec.template.affinity",
        {"nodeAffinity": {"required": {}}},
        "spec.template.affinity: nodeAffinity.required: unknown field",
    ),
    "terms that are no list": (
        "spec.template.affinity",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": {"a": "b"}}}},
        "nodeSelectorTerms: should be a valid list, not a dict",
    ),
    "a variable without a name": ("spec.template.env", [{"value": "1"}], "spec.template.env.0: name: missing"),
    "requests with a typo": ("spec.template.resources", {"request": {}}, "spec.template.resources: request: unknown"),
    "a GPU on a CPU": ("spec.accelerator", {"type": "cpu", "product": "H100"}, "spec.accelerator: type cpu takes no"),
    "two CPUs": ("spec.accelerator", {"type": "cpu", "count": 2}, "spec.accelerator: type cpu takes no"),
    "a device nobody has": ("spec.accelerator.type", "tpu", "spec.accelerator.type: should be 'nvidia' or 'cpu'"),
    "suspended maybe": ("spec.suspend", "no", "spec.suspend: should be a valid boolean, not 'no'"),
    "a list for a mapping": ("spec.model", [1, [2]], "spec.model: .* not a list"),
    "labels in numbers": ("metadata.labels", {"a": 1}, "metadata.labels.a: should be a valid string"),
}
