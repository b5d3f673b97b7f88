"""Pools, models and nodes for tests of the planner."""

from __future__ import annotations

import copy
from typing import Any

from decodepool_operator.planner.resolution import source_key
from decodepool_operator.planner.state import Object, Observed, Resolved
from decodepool_sizing.facts import ModelFacts, read_facts

from tests.operator.pods import component_of
from tests.operator.simulation import IMAGES, Cluster, Fate
from tests.sizing.gguf_bytes import BytesReader, tiny

URL = "http://models.example/tiny.gguf"


def facts(**changes: Any) -> ModelFacts:
    """What is known of the 2-layer llama of the sizing tests."""
    return read_facts(BytesReader(tiny(**changes)))


def pool(name: str = "chat", **spec: Any) -> Object:
    """A CPU pool whose model is behind a URL, changed."""
    base: Object = {
        "model": {"source": {"http": {"url": URL}}},
        "contextTokens": 128,
        "kvType": "f16",
        "sessionsPerWorker": 8,
        "replicas": 1,
        "accelerator": {"type": "cpu"},
        "drain": {"timeoutSeconds": 30},
    }
    metadata = {"name": name, "namespace": "team", "uid": "pool-uid", "generation": 1}
    wanted = {key: value for key, value in {**base, **spec}.items() if value is not None}
    return {
        "apiVersion": "decodepool.dev/v1alpha1",
        "kind": "DecodePool",
        "metadata": metadata,
        "spec": copy.deepcopy(wanted),
    }


def gpu_pool(**spec: Any) -> Object:
    """A pool of whole GPUs with 24 GiB each."""
    return pool(**{"accelerator": {"type": "nvidia", "memory": "24Gi"}, **spec})


def host_path_pool(**spec: Any) -> Object:
    """A pool whose model lies on the nodes."""
    return pool(**{"model": {"source": {"hostPath": {"path": "/srv/models/tiny.gguf"}}}, **spec})


def resolved(raw: Object, known: ModelFacts | None = None) -> Resolved:
    """What the shell says of a pool whose model it has read."""
    return Resolved(known or facts(), source_key(raw))


def cluster(raw: Object, **parts: Any) -> Cluster:
    """A cluster in which the pool's model is known."""
    return Cluster(raw, **{"resolution": resolved(raw), **parts})


def observed(raw: Object, **parts: Any) -> Observed:
    """What is seen of a pool before anything was made."""
    return Observed(**{"images": IMAGES, "resolution": resolved(raw), **parts})


def node(
    name: str,
    labels: dict[str, str] | None = None,
    *,
    gpus: int = 1,
    resource: str = "nvidia.com/gpu",
    taints: list[Object] | None = None,
) -> Object:
    """A node that offers devices."""
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": {resource: str(gpus)}},
    }


def workers_that(fate: Fate, when: Any = lambda pod: True) -> Any:
    """A fate of workers; gateways are well."""
    return lambda pod: fate if component_of(pod) == "worker" and when(pod) else Fate()


def those_that(component: str, fate: Fate) -> Any:
    """A fate of one component's pods; all others are well."""
    return lambda pod: fate if component_of(pod) == component else Fate()


def reader_that_says(known: ModelFacts | None = None) -> Any:
    """A fate in which the reader finds the model."""
    words = (known or facts()).to_json()
    return lambda pod: Fate(ready_after=1, says=words) if component_of(pod) == "reader" else Fate()
