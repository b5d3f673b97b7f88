"""How much memory a worker's device has, and who says so: the spec, the product's name, or the nodes' own labels; and
whether the engine runs on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from decodepool_sizing.devices import DeviceMemory, gpu_memory
from decodepool_sizing.gpu_names import find_gpu, is_shared
from decodepool_sizing.gpus import GPU, GPUS
from decodepool_sizing.support import gpu_refusals

from decodepool_operator.planner import nodes
from decodepool_operator.planner.differences import digest
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.state import Object

WHOLE_GPU = "nvidia.com/gpu"
SHARED = ".shared"
"""Of a resource's name, where its devices are shared out and that is how they are told apart."""
SLICE = re.compile(
    r"(?P<resource>nvidia\.com/mig-(?P<profile>[0-9]+g\.(?P<gigabytes>[0-9]+)gb[-.+a-z0-9]*?))(\.shared)?"
)
MEMORY_LABEL = "nvidia.com/gpu.memory"
CAPABILITY_LABELS = ("nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor")
SLICE_GIGABYTE_BYTES = 9 * 10**8
"""What is counted on for each gigabyte in a slice's name, where nothing better is known: names are rounded up."""


@dataclass(frozen=True)
class Refused:
    """Why something cannot be planned: a condition's reason and its message."""

    reason: str
    message: str


@dataclass(frozen=True)
class Device:
    """A GPU, or a slice of one, to plan for. `placement` names what decides its memory, where the nodes do."""

    memory: DeviceMemory
    told_by: str
    placement: str | None = None


def resource_of(pool: Pool) -> str:
    """Return the resource that a GPU worker asks Kubernetes for."""
    return pool.spec.accelerator.resource or WHOLE_GPU


def find_device(pool: Pool, seen: tuple[Object, ...] | None) -> Device | Refused:
    """Return the GPU to plan for: the smallest of those that the pool's workers may be put on."""
    accelerator = pool.spec.accelerator
    if accelerator.count != 1:
        return Refused(
            "UnsupportedCount",
            f"accelerator.count is {accelerator.count}: a worker runs on one device; more replicas use more",
        )
    refused = _refused_gpu(pool, seen)
    if refused is not None:
        return refused
    if accelerator.memory is not None:
        return Device(gpu_memory(accelerator.memory, accelerator.product or resource_of(pool)), "spec")
    product, resource = accelerator.product or "", resource_of(pool)
    is_whole = not is_shared(product) and not resource.endswith(SHARED)
    if is_whole and (by_name := _by_product(product, resource)):
        return Device(by_name, "product")
    return _by_nodes(pool, seen)


def _refused_gpu(pool: Pool, seen: tuple[Object, ...] | None) -> Refused | None:
    """Return why the engine does not run on the product asked for, or on a GPU that a worker may get: whatever memory
    is told of it, the worker would end at its start.
    """
    asked = _known(pool.spec.accelerator.product or "")
    if asked is not None and (lines := gpu_refusals(asked.compute_capability)):
        return Refused("UnsupportedGPU", f"accelerator.product: {asked.name}: {lines[0]}")
    resource = resource_of(pool)
    having = [node for node in nodes.admitted(pool, seen or ()) if nodes.offered(node, resource)]
    told = [(node, gpu_refusals(capability)) for node in having if (capability := _capability(node))]
    refused = [(str(node["metadata"]["name"]), _name(node, resource), lines[0]) for node, lines in told if lines]
    if not refused:
        return None
    name, product, line = min(refused)
    run = {nodes.labels(node).get(nodes.PRODUCT_LABEL, "") for node, lines in told if not lines} - {""}
    such = f", such as {min(run)}," if run else ""
    where = f"node {name}, which the pool admits, has a {product}"
    helps = f"accelerator.product{such} or template.nodeSelector keeps workers off it"
    return Refused("UnsupportedGPU", f"{where}: {line}; {helps}")


def _capability(node: Object) -> str | None:
    """Return the compute capability of a node's GPUs: as its labels have it, else its product's."""
    here = nodes.labels(node)
    major, minor = (here.get(label, "") for label in CAPABILITY_LABELS)
    if major.isdigit() and minor.isdigit():
        return f"{major}.{minor}"
    known = _known(here.get(nodes.PRODUCT_LABEL, ""))
    return None if known is None else known.compute_capability


def _known(name: str) -> GPU | None:
    try:
        return find_gpu(name)
    except ValueError:
        return None


def _by_product(product: str, resource: str) -> DeviceMemory | None:
    is_slice = SLICE.fullmatch(resource)
    known = _known(f"{product} MIG {is_slice['profile']}" if is_slice else product)
    return None if known is None else known.device


def _by_nodes(pool: Pool, seen: tuple[Object, ...] | None) -> Device | Refused:
    resource = resource_of(pool)
    placement = _placement(pool)
    if seen is None:
        return _remembered(pool, placement) or _unknown(
            f"this operator may not list nodes to learn the memory of {resource}"
        )
    admitted = nodes.admitted(pool, seen)
    having = [node for node in admitted if nodes.offered(node, resource)]
    sized = [(size, _name(node, resource)) for node in having if (size := _size(node, resource))]
    if not sized:
        return _remembered(pool, placement) or _nothing_known(resource, len(seen), len(admitted), len(having))
    memory_bytes, product = min(sized)
    kept = _remembered(pool, placement)
    if kept is not None and kept.memory.memory_bytes < memory_bytes:
        return kept
    return Device(gpu_memory(memory_bytes, product), "node labels", placement)


def _name(node: Object, resource: str) -> str:
    product = nodes.labels(node).get(nodes.PRODUCT_LABEL, resource)
    is_slice = SLICE.fullmatch(resource)
    return f"{product} MIG {is_slice['profile']}" if is_slice and product != resource else product


def _size(node: Object, resource: str) -> int | None:
    """Return the bytes of one device of a node: its label, shared out where the device is shared."""
    here = nodes.labels(node)
    is_slice = SLICE.fullmatch(resource)
    own = is_slice["resource"] if is_slice else WHOLE_GPU
    label, shared = f"{own}.memory", here.get(f"{own}.replicas", "1")
    sharers = int(shared) if shared.isdigit() and int(shared) > 0 else 1
    mebibytes = here.get(label, "")
    if mebibytes.isdigit() and int(mebibytes):
        return (int(mebibytes) << 20) // sharers
    by_name = _by_product(here.get(nodes.PRODUCT_LABEL, ""), resource)
    if by_name is not None:
        return by_name.memory_bytes // sharers
    return _slice_bytes(is_slice["profile"], int(is_slice["gigabytes"])) // sharers if is_slice else None


def _slice_bytes(profile: str, gigabytes: int) -> int:
    """Return the least that a slice of a name has on any GPU that is known to have it."""
    known = [gpu.memory_bytes for gpu in GPUS if gpu.name.endswith(f" MIG {profile}")]
    return min(known, default=gigabytes * SLICE_GIGABYTE_BYTES)


def _placement(pool: Pool) -> str:
    accelerator = pool.spec.accelerator
    where = [nodes.node_selector(pool), nodes.affinity(pool), nodes.tolerations(pool)]
    return digest([resource_of(pool), accelerator.product, *where])


def _remembered(pool: Pool, placement: str) -> Device | None:
    """Return the device of the last plan, where the nodes decided it by the same placement.

    A smaller node changes the plan; its going away does not change it back. Else a node that comes and goes would
    replace every worker each time.
    """
    plan = pool.status.get("plan") or {}
    memory_bytes = plan.get("deviceBytes")
    if plan.get("placement") != placement or not isinstance(memory_bytes, int):
        return None
    name = str(plan.get("device", "")).removesuffix(" (node labels)") or resource_of(pool)
    return Device(gpu_memory(memory_bytes, name), "node labels", placement)


def _nothing_known(resource: str, all_nodes: int, admitted: int, having: int) -> Refused:
    if not having:
        return _unknown(f"none of the {admitted} nodes that the pool admits, of {all_nodes}, offers {resource}")
    return _unknown(
        f"the {having} nodes that offer {resource} have no label {MEMORY_LABEL} and no product that is known"
    )


def _unknown(why: str) -> Refused:
    return Refused("DeviceUnknown", f"{why}; say accelerator.memory, or accelerator.product by a known name")
