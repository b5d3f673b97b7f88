"""The status of a pool, from its situation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decodepool_sizing.quantities import format_bytes

from decodepool_operator import times
from decodepool_operator.names import WORKER
from decodepool_operator.planner.capacity import Capacity
from decodepool_operator.planner.census import sidecar_pods
from decodepool_operator.planner.conditions import Finding, with_times
from decodepool_operator.planner.devices import resource_of, was_planned
from decodepool_operator.planner.objects.model_files import model_name
from decodepool_operator.planner.objects.network import endpoint
from decodepool_operator.planner.pools import selector_of
from decodepool_operator.planner.situation import Situation
from decodepool_operator.planner.state import Object, Unresolved
from decodepool_operator.planner.troubles import condition_of

MAX_DRAINING = 32


def status_of(seen: Situation, found: Iterable[Finding], measured: Object | None) -> Object:
    """Return the whole status. What is not known is left out."""
    pool, workers = seen.pool, seen.workers
    status = {
        "observedGeneration": pool.generation,
        "replicas": len(workers.alive),
        "readyReplicas": len(workers.current_ready),
        "updatedReplicas": len(workers.current),
        "workers": f"{len(workers.current_ready)}/{seen.wanted}",
        "selector": ",".join(f"{key}={value}" for key, value in sorted(selector_of(pool.name, WORKER).items())),
        "endpoint": endpoint(pool),
        "accelerator": _accelerator(seen),
        "model": _model(seen),
        "plan": _plan(seen.planned) or _last_plan(seen),
        "measured": measured,
        "sessions": _sessions(seen),
        "sidecars": _sidecars(seen),
        "draining": _draining(seen),
        "autoscaling": seen.wish.status,
        "failures": seen.failing and seen.failing.to_status(),
        "gatewayFailures": seen.gateways_failing and seen.gateways_failing.to_status(),
        "conditions": with_times(found, pool.status, pool.generation, seen.now),
    }
    return _known(status)


def _known(status: Object) -> Object:
    return {key: value for key, value in status.items() if value is not None}


def _accelerator(seen: Situation) -> str:
    if seen.pool.kind == "cpu":
        return "cpu"
    resource, planned = resource_of(seen.pool), seen.planned
    name = planned.plan.device.name if planned else seen.pool.spec.accelerator.product or resource
    return resource if name == resource else f"{resource} {name}"[:128]


def _model(seen: Situation) -> Object:
    name, facts = model_name(seen.pool), seen.facts
    if facts is None:
        failed = isinstance(seen.reading.resolution, Unresolved)
        return {"name": name, "source": seen.pool.source} if failed else {"name": name}
    return {
        "name": name,
        "digest": facts.digest,
        "fileBytes": facts.file_bytes,
        "architecture": facts.shape.architecture,
        "quantization": facts.quantization,
        "layers": facts.shape.block_count,
        "maxContextTokens": facts.shape.max_context_tokens,
        "source": seen.pool.source,
        "facts": facts.to_json(),
    }


def _plan(planned: Capacity | None) -> Object | None:
    if planned is None:
        return None
    plan = planned.plan
    return _known(
        {
            "device": planned.device,
            "placement": planned.placement,
            "contextTokens": plan.context_tokens,
            "kvType": plan.kv_type.value,
            "deviceBytes": plan.device.memory_bytes,
            "usableBytes": plan.usable_bytes,
            "weightBytes": plan.weight_bytes,
            "workspaceBytes": plan.workspace_bytes,
            "sessionBytes": plan.session_bytes,
            "reserveBytes": plan.reserve_bytes,
            "cacheBytes": plan.cache_bytes,
            "sessionsPerWorker": plan.sessions,
            "limitedBy": plan.limited_by.value,
            "reserve": format_bytes(plan.reserve_bytes),
        }
    )


def _last_plan(seen: Situation) -> Object | None:
    """Return the last plan while its workers' Deployment is there, or the same nodes are looked at: a spec that is
    refused for a while, or a model that is being read, is planned for the same GPUs again, suspended or not.
    """
    return seen.pool.status.get("plan") if seen.live_worker is not None or was_planned(seen.pool) else None


def _sessions(seen: Situation) -> Object:
    """Return the sessions. Where a ready worker has not answered, what was known last stands."""
    ready, before = seen.workers.ready, seen.pool.status.get("sessions") or {}
    planned = seen.planned.plan.sessions if seen.planned else 0
    capacity = sum(each.report.sessions_capacity if each.report else planned for each in ready)
    reports = [each.report for each in seen.workers.members if each.report is not None]
    active: Any = sum(report.sessions_active for report in reports)
    if any(each.report is None for each in ready) and isinstance(before.get("active"), int):
        active = before["active"]
    found = {"capacity": capacity, "active": active, "queued": seen.observed.queued, "summary": f"{active}/{capacity}"}
    return _known(found)


def _sidecars(seen: Situation) -> Object | None:
    pods = sidecar_pods(seen.pool, seen.observed.pods)
    if not pods:
        return None
    reports = [report for pod in pods if (report := seen.observed.reports.get(pod["metadata"]["name"]))]
    return {
        "count": len(pods),
        "ready": sum(condition_of(pod, "Ready").get("status") == "True" for pod in pods),
        "capacity": sum(report.sessions_capacity for report in reports),
        "active": sum(report.sessions_active for report in reports),
    }


def _draining(seen: Situation) -> list[Object] | None:
    leaving = [
        _known(
            {
                "pod": each.name,
                "since": each.going_since and times.written(each.going_since),
                "sessions": each.report and each.report.sessions_active,
            }
        )
        for each in seen.workers.draining
    ]
    return leaving[:MAX_DRAINING] or None
