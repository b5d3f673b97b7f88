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

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANY_BUT_OLD: Object = {
    "matchExpressions": [
        {"key": MAJOR_LABEL, "operator": "NotIn", "values": [*OLD_MAJORS]},
        {
            "key": PRODUCT_LABEL,
            "operator": "NotIn",
            "values": [name + ending for name in OLD_PRODUCTS for ending in ("", SHARED_SUFFIX)],
        },
    ]
}
"""The term that keeps workers off these. It is the same whatever nodes there are: one that joins replaces no worker. A
node without a label passes. GPU feature discovery writes both; who labels by hand may write the product alone.
"""


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


def misplaced(pods: Iterable[Object], nodes: Iterable[Object]) -> frozenset[str]:
    """Return the names of the pods on nodes whose labels now tell of GPUs that are too old, which their own affinity
    keeps them off: a node may offer its GPUs before it is labelled. What else an affinity says is asked when a pod is
    placed, and never after.
    """
    here = {str(node["metadata"]["name"]): node for node in nodes if not _term(ANY_BUT_OLD, node)}
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


def worker_affinity(pool: Pool) -> Object:
    """Return a worker's affinity: the template's, and for a GPU worker off GPUs that are too old."""
    return affinity(pool) if pool.kind == "cpu" else off_old_gpus(affinity(pool))


def off_old_gpus(given: Object) -> Object:
    """Return an affinity that admits what it did, save for nodes whose labels tell of GPUs that are too old."""
    of_nodes = given.get("nodeAffinity") or {}
    required = of_nodes.get(REQUIRED)
    terms = [_narrowed(term) for term in required.get("nodeSelectorTerms") or ()] if required else [ANY_BUT_OLD]
    return {**given, "nodeAffinity": {**of_nodes, REQUIRED: {**(required or {}), "nodeSelectorTerms": terms}}}


def _narrowed(term: Object) -> Object:
    """Narrow one of the alternatives. An empty one holds for no node, and would for some with an expression in it."""
    expressions = term.get("matchExpressions") or []
    if not (expressions or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*expressions, *ANY_BUT_OLD["matchExpressions"]]}


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
