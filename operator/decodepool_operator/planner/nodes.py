"""Which nodes a pool's workers may be put on, as the scheduler will see it, and what GPUs those have.

Only what lasts is looked at: a node that is cordoned, not ready or under pressure for now still has its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from decodepool_sizing.support import OLDEST_COMPUTE_CAPABILITY

from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object

PASSING_TAINTS = "node.kubernetes.io/"
GPU_TOLERATION: Object = {"key": "nvidia.com/gpu", "operator": "Exists"}
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"
SHARED_SUFFIX = "-SHARED"
"""Of the product's name, where a GPU is shared out."""
MAJOR_LABEL, MINOR_LABEL = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
OLD_MAJORS = tuple(str(major) for major in range(1, int(OLDEST_COMPUTE_CAPABILITY.partition(".")[0])))
OLD_PRODUCTS: Mapping[str, str] = {
    "Tesla-P4": "6.1",
    "Tesla-P40": "6.1",
    "Tesla-P100-PCIE-12GB": "6.0",
    "Tesla-P100-PCIE-16GB": "6.0",
    "Tesla-P100-SXM2-16GB": "6.0",
    "Tesla-V100-DGXS-16GB": "7.0",
    "Tesla-V100-DGXS-32GB": "7.0",
    "Tesla-V100-FHHL-16GB": "7.0",
    "Tesla-V100-PCIE-16GB": "7.0",
    "Tesla-V100-PCIE-32GB": "7.0",
    "Tesla-V100-SXM2-16GB": "7.0",
    "Tesla-V100-SXM2-32GB": "7.0",
    "Tesla-V100-SXM3-32GB": "7.0",
    "Tesla-V100S-PCIE-32GB": "7.0",
    "Tesla-T4": "7.5",
    "Quadro-RTX-6000": "7.5",
    "Quadro-RTX-8000": "7.5",
    "TITAN-RTX": "7.5",
    "NVIDIA-TITAN-RTX": "7.5",
}
"""As drivers, and so labels, call what a cluster still has of GPUs that are too old for the engine, and the compute
capability of each.
"""
PRODUCTS: Mapping[str, str] = {
    **OLD_PRODUCTS,
    "NVIDIA-A10": "8.6",
    "NVIDIA-A10G": "8.6",
    "NVIDIA-A40": "8.6",
    "NVIDIA-GeForce-RTX-3090": "8.6",
    "NVIDIA-RTX-A6000": "8.6",
    "NVIDIA-GeForce-RTX-4080": "8.9",
    "NVIDIA-GeForce-RTX-4090": "8.9",
    "NVIDIA-L4": "8.9",
    "NVIDIA-L40": "8.9",
    "NVIDIA-L40S": "8.9",
    "NVIDIA-RTX-6000-Ada-Generation": "8.9",
    "NVIDIA-GeForce-RTX-5080": "12.0",
    "NVIDIA-GeForce-RTX-5090": "12.0",
    "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition": "12.0",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": "12.0",
    "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition": "12.0",
}
"""These, and those whose thread blocks have the least shared memory: attention needs more for some models' heads."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def gpu_terms(refused: tuple[str, ...] = ()) -> list[Object]:
    """Return the alternatives that keep workers off GPUs that are too old, and off those of compute capabilities on
    which the engine refuses the model. They are the same whatever nodes there are: one that joins replaces no worker. A
    node without a label passes. GPU feature discovery writes all; who labels by hand may write the product alone.
    """
    minors: dict[str, list[str]] = {}
    for major, _, minor in (each.partition(".") for each in refused):
        minors.setdefault(major, []).append(minor)
    names = [name for name, capability in PRODUCTS.items() if name in OLD_PRODUCTS or capability in refused]
    other_product = _is_none_of(PRODUCT_LABEL, [name + ending for name in names for ending in ("", SHARED_SUFFIX)])
    of_a_major: list[list[Object]] = [
        [{"key": MAJOR_LABEL, "operator": "In", "values": [major]}, _is_none_of(MINOR_LABEL, its_own)]
        for major, its_own in minors.items()
    ]
    by_capability = [[_is_none_of(MAJOR_LABEL, [*OLD_MAJORS, *minors])], *of_a_major]
    return [{"matchExpressions": [*each, other_product]} for each in by_capability]


def _is_none_of(label: str, values: list[str]) -> Object:
    return {"key": label, "operator": "NotIn", "values": values}


def admitted(pool: Pool, nodes: Iterable[Object]) -> list[Object]:
    """Return the nodes that selector, affinity and tolerations of the pool's workers admit."""
    return [node for node in nodes if _selected(pool, node) and _tolerated(pool, node)]


def lost(nodes: Iterable[Object]) -> frozenset[str]:
    """Return the names of the nodes whose kubelets are not heard, or say that they are not ready."""
    return frozenset(
        str(node["metadata"]["name"])
        for node in nodes
        for condition in node.get("status", {}).get("conditions") or ()
        if condition.get("type") == "Ready" and condition.get("status") != "True"
    )


def misplaced(pods: Iterable[Object], nodes: Iterable[Object], refused: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the names of the pods on nodes whose labels now tell of GPUs that `gpu_terms` keep workers off, as their
    own affinity does: a node may offer its GPUs before it is labelled. What else an affinity says is asked when a pod
    is placed, and never after.
    """
    terms = gpu_terms(refused)
    here = {str(node["metadata"]["name"]): node for node in nodes if not any(_term(each, node) for each in terms)}
    placed = [(pod, here.get(pod.get("spec", {}).get("nodeName"))) for pod in pods]
    return frozenset(
        str(pod["metadata"]["name"])
        for pod, node in placed
        if node is not None and not admits(pod["spec"].get("affinity") or {}, node)
    )


def labels(node: Object) -> Mapping[str, str]:
    """Return a node's labels."""
    found: Mapping[str, str] = node.get("metadata", {}).get("labels") or {}
    return found


def offered(node: Object, resource: str) -> int:
    """Return how many of a resource a node offers."""
    status = node.get("status", {})
    text = str((status.get("allocatable") or status.get("capacity") or {}).get(resource, "0"))
    return int(text) if text.isdigit() else 0


def node_selector(pool: Pool) -> dict[str, str]:
    """Return what a worker's node must be labelled: the template's selector, and the product that was asked for."""
    template, product = pool.spec.template, pool.spec.accelerator.product
    selector = dict(template.node_selector) if template else {}
    return {**selector, PRODUCT_LABEL: product} if product else selector


def tolerations(pool: Pool) -> list[Object]:
    """Return what a worker tolerates: what the template says, and the taint that keeps others off GPUs."""
    template = pool.spec.template
    own = [dict(each) for each in template.tolerations] if template else []
    return own if pool.kind == "cpu" or GPU_TOLERATION in own else [*own, GPU_TOLERATION]


def affinity(pool: Pool) -> Object:
    """Return the template's affinity."""
    template = pool.spec.template
    return dict(template.affinity) if template and template.affinity else {}


def worker_affinity(pool: Pool, refused: tuple[str, ...] = ()) -> Object:
    """Return a worker's affinity: the template's, and for a GPU worker off GPUs as `gpu_terms` says."""
    return affinity(pool) if pool.kind == "cpu" else off_gpus(affinity(pool), refused)


def off_gpus(given: Object, refused: tuple[str, ...] = ()) -> Object:
    """Return an affinity that admits what it did, save for nodes whose labels tell of GPUs that are too old, or of a
    compute capability on which the engine refuses the model.
    """
    of_nodes, own = given.get("nodeAffinity") or {}, gpu_terms(refused)
    required = of_nodes.get(REQUIRED)
    terms = [_narrowed(term, own) for term in required.get("nodeSelectorTerms") or ()] if required else [own]
    selector = {**(required or {}), "nodeSelectorTerms": [each for alternatives in terms for each in alternatives]}
    return {**given, "nodeAffinity": {**of_nodes, REQUIRED: selector}}


def _narrowed(term: Object, own: list[Object]) -> list[Object]:
    """Narrow one of the alternatives. An empty one holds for no node, and would for some with an expression in it."""
    expressions = term.get("matchExpressions") or []
    if not (expressions or term.get("matchFields")):
        return [term]
    return [{**term, "matchExpressions": [*expressions, *each["matchExpressions"]]} for each in own]


def _selected(pool: Pool, node: Object) -> bool:
    here = labels(node)
    if any(here.get(key) != value for key, value in node_selector(pool).items()):
        return False
    return admits(affinity(pool), node)


def admits(given: Object, node: Object) -> bool:
    """Say whether an affinity admits a node. What it merely prefers keeps a pod off none."""
    required = (given.get("nodeAffinity") or {}).get(REQUIRED)
    return required is None or any(_term(term, node) for term in required.get("nodeSelectorTerms") or ())


def _term(term: Object, node: Object) -> bool:
    """Terms are alternatives; all of one term's expressions must hold, and an empty term holds for no node."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    here = labels(node)
    names = {"metadata.name": node.get("metadata", {}).get("name", "")}
    return bool(expressions or fields) and all(
        [*(_expression(each, here) for each in expressions), *(_expression(each, names) for each in fields)]
    )


def _expression(expression: Object, here: Mapping[str, str]) -> bool:
    value = here.get(str(expression.get("key")))
    wanted = expression.get("values") or []
    holds = {
        "In": value in wanted,
        "NotIn": value not in wanted,
        "Exists": value is not None,
        "DoesNotExist": value is None,
        "Gt": _compared(value, wanted) > 0,
        "Lt": _compared(value, wanted) < 0,
    }
    return holds.get(str(expression.get("operator")), False)


def _compared(value: str | None, wanted: list[Any]) -> int:
    try:
        return int(str(value)) - int(str(wanted[0]))
    except (ValueError, IndexError):
        return 0


def _tolerated(pool: Pool, node: Object) -> bool:
    hard = [
        taint
        for taint in node.get("spec", {}).get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not str(taint.get("key")).startswith(PASSING_TAINTS)
    ]
    return all(any(_tolerates(each, taint) for each in tolerations(pool)) for taint in hard)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
