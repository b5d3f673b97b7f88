"""How much memory a worker's device has, and who says so: the spec, the product's name, or the nodes' own labels; and
whether the engine runs on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from decodepool_sizing.devices import ANY_CORES, DeviceMemory, gpu_memory
from decodepool_sizing.gpu_names import find_gpu, is_shared
from decodepool_sizing.gpus import GPU, GPUS, cores_of
from decodepool_sizing.support import OLDEST_COMPUTE_CAPABILITY, gpu_refusals

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
NODE_LABELS = "node labels"
"""Who tells a device's memory, where nodes do."""
DEVICE_UNKNOWN = "DeviceUnknown"
SLICE_GIGABYTE_BYTES = 9 * 10**8
"""What is counted on for each gigabyte in a slice's name, where nothing better is known: names are rounded up."""


@dataclass(frozen=True)
class Refused:
    """Why something cannot be planned: a condition's reason and its message."""

    reason: str
    message: str


ModelRefusals = Callable[[str | None], list[str]]
"""Why the engine would not run the pool's model on a GPU, by its compute capability, None where that is not known."""


@dataclass(frozen=True)
class Device:
    """A GPU, or a slice of one, to plan for. `placement` names what decides which nodes are looked at. The products of
    nodes that the pool would admit, were it not for their GPUs: `left_out` are too old for the engine, `unfit` do not
    run the model.
    """

    memory: DeviceMemory
    told_by: str
    placement: str
    left_out: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class _Unusable:
    node: str
    product: str
    why: str


@dataclass(frozen=True)
class _Offers:
    """The nodes that offer what a worker asks for, of so many that the pool admits."""

    admitted: int
    usable: list[Object]
    too_old: list[_Unusable]
    unfit: list[_Unusable]


def resource_of(pool: Pool) -> str:
    """Return the resource that a GPU worker asks Kubernetes for."""
    return pool.spec.accelerator.resource or WHOLE_GPU


def find_device(pool: Pool, seen: tuple[Object, ...] | None, refusals: ModelRefusals) -> Device | Refused:
    """Return the GPU to plan for: the smallest of those that the pool's workers may be put on and run the model on."""
    accelerator = pool.spec.accelerator
    if accelerator.count != 1:
        return Refused(
            "UnsupportedCount",
            f"accelerator.count is {accelerator.count}: a worker runs on one device; more replicas use more",
        )
    product = accelerator.product or ""
    capability, asked = capability_by_name(product), f"accelerator.product: {product}: " if product else ""
    if lines := gpu_refusals(capability or OLDEST_COMPUTE_CAPABILITY):
        return Refused("UnsupportedGPU", f"{asked}{lines[0]}")
    if lines := refusals(capability):
        return Refused("UnsupportedModel", f"{asked}{lines[0]}")
    offers, kept = _offers(pool, seen or (), refusals), _remembered(pool, refusals)
    found = _none_usable(pool, offers, kept) or _told(pool, offers, kept) or _by_nodes(pool, seen, offers, kept)
    if isinstance(found, Refused):
        return found
    return replace(found, left_out=_products(offers.too_old), unfit=_products(offers.unfit))


def _products(nodes_of: list[_Unusable]) -> tuple[str, ...]:
    return tuple(sorted({each.product for each in nodes_of}))


def _told(pool: Pool, offers: _Offers, kept: Device | None) -> Device | None:
    """Return the GPU whose memory the spec says, or its product; None where nodes have to: what is shared out by its
    name, or by the labels of a node that offers it or did when the last plan was made, is never all of what it names.
    """
    accelerator, resource = pool.spec.accelerator, resource_of(pool)
    product = accelerator.product or ""
    if accelerator.memory is not None:
        return Device(_memory(pool, accelerator.memory, product or resource), "spec", _placement(pool))
    shared = any((_sharers(node, resource) or 0) > 1 for node in offers.usable)
    if shared or _shared_name(pool) or kept:
        return None
    by_name = _by_product(product, resource)
    return Device(by_name, "product", _placement(pool)) if by_name else None


def _shared_name(pool: Pool) -> str | None:
    """Return the product or resource that the pool asks for, where its name says that it is shared out."""
    product, resource = pool.spec.accelerator.product or "", resource_of(pool)
    return next((name for name in (product, resource) if _is_shared_name(name)), None)


def _is_shared_name(name: str) -> bool:
    return is_shared(name) or name.endswith(SHARED)


def _memory(pool: Pool, memory_bytes: int, name: str) -> DeviceMemory:
    """Return a GPU to plan for, with the cores of the product that the pool asks for. Other labels of nodes do not
    decide them: a node that comes would replace every worker.
    """
    known = _known(pool.spec.accelerator.product or "")
    return gpu_memory(memory_bytes, name, ANY_CORES if known is None else cores_of(known.compute_capability))


def _offers(pool: Pool, seen: tuple[Object, ...], refusals: ModelRefusals) -> _Offers:
    """Tell nodes with GPUs that the engine may run the model on from those whose labels say that it does not: whatever
    memory is told of such a GPU, a worker would end at its start.
    """
    resource = resource_of(pool)
    admitted = nodes.admitted(pool, seen)
    offers = _Offers(len(admitted), [], [], [])
    for node in (each for each in admitted if nodes.offered(each, resource)):
        name, product, capability = str(node["metadata"]["name"]), _name(node, resource), _capability(node)
        named = _named(nodes.labels(node).get(nodes.PRODUCT_LABEL, ""))
        if lines := gpu_refusals(capability or OLDEST_COMPUTE_CAPABILITY):
            offers.too_old.append(_Unusable(name, product, lines[0]))
        elif lines := refusals(capability) or refusals(named):
            offers.unfit.append(_Unusable(name, product, lines[0]))
        else:
            offers.usable.append(node)
    return offers


def _none_usable(pool: Pool, offers: _Offers, kept: Device | None) -> Refused | None:
    """Refuse where no node's GPU runs the model, unless the last plan was made for one that does: it may come back."""
    if offers.usable:
        return None
    if offers.unfit and (kept is None or capability_by_name(kept.memory.name) is None):
        return _nothing_but("UnsupportedModel", offers.unfit)
    if offers.too_old and not was_planned(pool):
        return _nothing_but("UnsupportedGPU", offers.too_old)
    return None


def _nothing_but(reason: str, unusable: list[_Unusable]) -> Refused:
    first = min(unusable)
    where = f"no node that the pool admits has another GPU than node {first.node}'s {first.product}"
    helps = "accelerator.product or template.nodeSelector has workers wait for nodes that are to come"
    return Refused(reason, f"{where}: {first.why}; {helps}")


def _capability(node: Object) -> str | None:
    """Return the compute capability of a node's GPUs: as its labels have it, else its product's. A product that workers
    are kept off by name is what its name says.
    """
    here = nodes.labels(node)
    major, minor = here.get(nodes.MAJOR_LABEL, ""), here.get(nodes.MINOR_LABEL, "")
    product = here.get(nodes.PRODUCT_LABEL, "")
    if major.isdigit() and product.removesuffix(nodes.SHARED_SUFFIX) not in nodes.OLD_PRODUCTS:
        return f"{major}.{minor if minor.isdigit() else 0}"
    return capability_by_name(product)


def capability_by_name(product: str) -> str | None:
    """Return the compute capability of a GPU, or a slice of one, by its name; None where the name is not known."""
    known = _known(product)
    return _named(product) or (None if known is None else known.compute_capability)


def _named(product: str) -> str | None:
    return nodes.PRODUCTS.get(product.removesuffix(nodes.SHARED_SUFFIX))


def _known(name: str) -> GPU | None:
    try:
        return find_gpu(name)
    except ValueError:
        return None


def _by_product(product: str, resource: str) -> DeviceMemory | None:
    is_slice = SLICE.fullmatch(resource)
    known = _known(f"{product} MIG {is_slice['profile']}" if is_slice else product)
    return None if known is None else known.device


def _by_nodes(pool: Pool, seen: tuple[Object, ...] | None, offers: _Offers, kept: Device | None) -> Device | Refused:
    resource = resource_of(pool)
    if seen is None:
        return kept or _unlisted(pool)
    sized = [(size, _name(node, resource)) for node in offers.usable if (size := _size(node, resource))]
    if not sized:
        return kept or _nothing_known(pool, len(seen), offers)
    memory_bytes, product = min(sized)
    if kept is not None and kept.memory.memory_bytes < memory_bytes:
        return kept
    return Device(_memory(pool, memory_bytes, product), NODE_LABELS, _placement(pool))


def _name(node: Object, resource: str) -> str:
    product = nodes.labels(node).get(nodes.PRODUCT_LABEL, resource)
    is_slice = SLICE.fullmatch(resource)
    return f"{product} MIG {is_slice['profile']}" if is_slice and product != resource else product


def _size(node: Object, resource: str) -> int | None:
    """Return the bytes of one device of a node: its label, shared out where the device is shared; None where they are
    not known.
    """
    here = nodes.labels(node)
    is_slice, sharers = SLICE.fullmatch(resource), _sharers(node, resource)
    if sharers is None:
        return None
    mebibytes = here.get(f"{_labelled(resource)}.memory", "")
    if mebibytes.isdigit() and int(mebibytes):
        return (int(mebibytes) << 20) // sharers
    by_name = _by_product(here.get(nodes.PRODUCT_LABEL, ""), resource)
    if by_name is not None:
        return by_name.memory_bytes // sharers
    return _slice_bytes(is_slice["profile"], int(is_slice["gigabytes"])) // sharers if is_slice else None


def _sharers(node: Object, resource: str) -> int | None:
    """Return how many pods share one device of a node; None where its name says that some do, and no label how many."""
    here, own = nodes.labels(node), _labelled(resource)
    replicas = here.get(f"{own}.replicas", "")
    if replicas.isdigit() and int(replicas) > 1:
        return int(replicas)
    names = (resource, here.get(f"{own}.product", here.get(nodes.PRODUCT_LABEL, "")))
    return None if any(map(_is_shared_name, names)) else 1


def _labelled(resource: str) -> str:
    """Return what a node's labels call a resource: the same whether it is shared out or not."""
    is_slice = SLICE.fullmatch(resource)
    return is_slice["resource"] if is_slice else WHOLE_GPU


def _slice_bytes(profile: str, gigabytes: int) -> int:
    """Return the least that a slice of a name has on any GPU that is known to have it."""
    known = [gpu.memory_bytes for gpu in GPUS if gpu.name.endswith(f" MIG {profile}")]
    return min(known, default=gigabytes * SLICE_GIGABYTE_BYTES)


def _placement(pool: Pool) -> str:
    accelerator = pool.spec.accelerator
    where = [nodes.node_selector(pool), nodes.affinity(pool), nodes.tolerations(pool)]
    told = [] if accelerator.memory is None else [accelerator.memory]
    return digest([resource_of(pool), accelerator.product, *where, *told])


def was_planned(pool: Pool) -> bool:
    """Say whether the last plan was made for the same nodes: those that have gone since may come back."""
    plan = pool.status.get("plan") or {}
    return bool(plan.get("placement") == _placement(pool))


def _remembered(pool: Pool, refusals: ModelRefusals) -> Device | None:
    """Return the device of the last plan, where the nodes decided it by the same placement, and it may run the model.

    A smaller node changes the plan; its going away does not change it back. Else a node that comes and goes would
    replace every worker each time.
    """
    plan = pool.status.get("plan") or {}
    memory_bytes, (name, _, told_by) = plan.get("deviceBytes"), str(plan.get("device", "")).rpartition(" (")
    if not was_planned(pool) or not isinstance(memory_bytes, int) or told_by != f"{NODE_LABELS})":
        return None
    if refusals(capability_by_name(name)):
        return None
    return Device(_memory(pool, memory_bytes, name), NODE_LABELS, _placement(pool))


def _unlisted(pool: Pool) -> Refused:
    shared = _shared_name(pool)
    if shared is not None:
        return _share_unknown(f"{shared} is shared out, and this operator may not list nodes to learn its share")
    return _unknown(f"this operator may not list nodes to learn the memory of {resource_of(pool)}")


def _nothing_known(pool: Pool, all_nodes: int, offers: _Offers) -> Refused:
    resource, shared, number = resource_of(pool), _shared_name(pool), len(offers.usable)
    if shared is not None:
        return _share_unknown(f"{shared} is shared out, and no node tells its share")
    if not number:
        return _unknown(f"none of the {offers.admitted} nodes that the pool admits, of {all_nodes}, offers {resource}")
    if any(_sharers(node, resource) is None for node in offers.usable):
        return _share_unknown(f"{resource} is shared out, and no node tells its share")
    return _unknown(
        f"the {number} nodes that offer {resource} have no label {nodes.MEMORY_LABEL} and no product that is known"
    )


def _share_unknown(why: str) -> Refused:
    return Refused(DEVICE_UNKNOWN, f"{why}: say accelerator.memory")


def _unknown(why: str) -> Refused:
    return Refused(DEVICE_UNKNOWN, f"{why}; say accelerator.memory, or accelerator.product by a known name")
