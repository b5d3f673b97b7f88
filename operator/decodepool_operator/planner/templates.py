"""What a user may not say of pods: what Kubernetes would refuse pod after pod is refused once, here."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from posixpath import normpath
from typing import Any

from decodepool_operator.planner.devices import Refused, resource_of
from decodepool_operator.planner.pools import Pool
from decodepool_operator.planner.quantities import amount
from decodepool_operator.planner.state import Object

RESERVED_VOLUMES = frozenset({"models", "tmp", "cache", "keys", "source"})
OWN_PATHS = frozenset({"/", "/models", "/tmp", "/cache", "/keys"})  # noqa: S108 - the pod's own
"""Where a worker's container has the pool's own mounts, and what holds all of it."""

CLOSED_PATHS = ("/models/", "/keys/")
"""Below these nothing can be mounted, since nothing can be written there to mount it on."""


def refused_template(pool: Pool) -> Refused | None:
    """Return why what the spec says of workers' and gateways' pods cannot be used; None where it can."""
    template, gateway = pool.spec.template, pool.spec.gateway
    bad = _refused_resources("gateway.resources", dict(gateway.resources or {}), _gateway_fault)
    if bad is not None or template is None:
        return bad
    bad_names = _refused_names([volume.get("name") for volume in template.volumes])
    if bad_names is not None:
        return Refused("InvalidTemplate", f"template.volumes: {bad_names}")
    mounts = [str(mount.get("mountPath")) for mount in template.volume_mounts]
    hidden = sorted(path for path in mounts if _is_own(path))
    if hidden:
        return Refused("InvalidTemplate", f"template.volumeMounts: {', '.join(hidden)}: these paths are the pool's own")
    return _refused_resources("template.resources", dict(template.resources or {}), partial(_device_fault, pool))


def _refused_names(names: list[Any]) -> str | None:
    if not all(isinstance(name, str) and name for name in names):
        return "each has to have a name"
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return f"{', '.join(twice)}: more than one of that name"
    taken = sorted(RESERVED_VOLUMES & {*names})
    return f"{', '.join(taken)}: these names are the pool's own" if taken else None


def _is_own(path: str) -> bool:
    plain = normpath("/" + path.lstrip("/"))
    return plain in OWN_PATHS or plain.startswith(CLOSED_PATHS)


def merged_resources(pool: Pool, own: Object) -> Object:
    """Return a worker's resources: the template's over the pool's own, extended ones equal in request and limit."""
    given: Object = dict(pool.spec.template.resources or {}) if pool.spec.template else {}
    given_limits, given_requests = _given(given, "limits"), _given(given, "requests")
    limits = {**own.get("limits", {}), **given_limits}
    requests = {**own.get("requests", {}), **given_requests}
    for name in {*limits, *requests}:
        if "/" in name:
            limits[name] = requests[name] = limits.get(name, requests.get(name))
    if "memory" in limits and "memory" not in given_requests:
        requests["memory"] = limits["memory"]
    if "memory" in requests and "memory" not in given_limits:
        limits["memory"] = requests["memory"]
    return {**_beside_amounts(given), "limits": _ordered(limits), "requests": _ordered(requests)}


def asks_for(pool: Pool, resource: str) -> bool:
    """Say whether the template gives workers a resource, as a request or as a limit, which is a request too."""
    given: Object = dict(pool.spec.template.resources or {}) if pool.spec.template else {}
    return resource in {**_given(given, "limits"), **_given(given, "requests")}


def gateway_resources(pool: Pool, own: Object) -> Object:
    """Return a gateway's resources: the spec's over the pool's own, which give way where a limit is below a request."""
    given: Object = dict(pool.spec.gateway.resources or {})
    given_limits = _given(given, "limits")
    limits = {**own["limits"], **given_limits}
    requests = {**own["requests"], **_given(given, "requests")}
    for name in {*limits} & {*requests}:
        if amount(requests[name]) > amount(limits[name]):
            requests[name] = limits[name] = limits[name] if name in given_limits else requests[name]
    return {**_beside_amounts(given), "limits": _ordered(limits), "requests": _ordered(requests)}


def _given(resources: Object, part: str) -> Object:
    """Return a part's amounts. One that is null is as if it were not there, as Kubernetes has it."""
    return {name: each for name, each in (resources.get(part) or {}).items() if each is not None}


def _beside_amounts(resources: Object) -> Object:
    return {key: value for key, value in resources.items() if key not in ("limits", "requests")}


def _ordered(amounts: dict[str, Any]) -> dict[str, str]:
    return {name: str(amounts[name]) for name in sorted(amounts)}


Fault = Callable[[str, Fraction], str | None]
"""Why so much of a resource cannot be; None where it can."""


def _refused_resources(field: str, resources: Object, device_fault: Fault) -> Refused | None:
    limits, requests = _given(resources, "limits"), _given(resources, "requests")
    for name in sorted({*limits, *requests}):
        fault = _amount_fault(name, limits.get(name), requests.get(name), device_fault)
        if fault:
            return Refused("InvalidResources", f"{field}: {name}: {fault}")
    return None


def _amount_fault(name: str, limit: Any, request: Any, device_fault: Fault) -> str | None:
    try:
        amounts = [amount(each) for each in (request, limit) if each is not None]
    except ValueError as error:
        return str(error)
    return _pair_fault(name, amounts, limit, request) or device_fault(name, amounts[0])


def _pair_fault(name: str, amounts: list[Fraction], limit: Any, request: Any) -> str | None:
    if any(each < 0 for each in amounts):
        return "less than nothing"
    if "/" in name and len(set(amounts)) > 1:
        return f"request {request} and limit {limit} differ, which Kubernetes refuses for such a resource"
    if len(amounts) == 2 and amounts[0] > amounts[1]:
        return f"request {request} is more than limit {limit}"
    return None


def _gateway_fault(name: str, _: Fraction) -> str | None:
    return "a gateway has no use for a GPU" if name.startswith("nvidia.com/") else None


def _device_fault(pool: Pool, name: str, asked: Fraction) -> str | None:
    if pool.kind == "cuda" and name == resource_of(pool) and asked != pool.spec.accelerator.count:
        return f"{asked} asked for, but accelerator.count is {pool.spec.accelerator.count}"
    if pool.kind == "cpu" and name.startswith("nvidia.com/"):
        return "a GPU for a pool whose accelerator.type is cpu"
    return None
