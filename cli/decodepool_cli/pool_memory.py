"""Whether a pool's workers fit into one machine together. Each plans by itself, as if the others took nothing."""

from __future__ import annotations

from decodepool_sizing.capacity import CapacityPlan
from decodepool_sizing.devices import PROCESS_BASE_BYTES
from decodepool_sizing.errors import CannotFit
from decodepool_sizing.quantities import exact_bytes


def worker_bytes(plan: CapacityPlan) -> int:
    """Return what one worker's process will have touched once it is ready."""
    return _least_bytes(plan) + plan.cache_bytes


def require_room(plan: CapacityPlan, workers: int, available_bytes: int) -> None:
    """Raise `CannotFit` with the numbers, and with what would fit, unless so many workers fit."""
    each = worker_bytes(plan)
    if workers * each <= available_bytes:
        return
    claim = f"{workers} worker{'s' if workers > 1 else ''} of {exact_bytes(each)} need {exact_bytes(workers * each)}"
    raise CannotFit(
        f"{claim}, but this machine has {exact_bytes(available_bytes)} available",
        needed_bytes=workers * each,
        available_bytes=available_bytes,
        advice=_advice(plan, workers, available_bytes),
    )


def _advice(plan: CapacityPlan, workers: int, available_bytes: int) -> str:
    fits = []
    if fewer := available_bytes // worker_bytes(plan):
        fits.append(f"spec.replicas: {fewer}")
    if _least_bytes(plan) <= available_bytes // workers:
        fits.append(f"spec.accelerator.memory: {available_bytes // workers}, with less cache")
    return f"would fit: {', or '.join(fits)}" if fits else "fewer sessions or a shorter context may fit"


def _least_bytes(plan: CapacityPlan) -> int:
    return PROCESS_BASE_BYTES + plan.weight_bytes + plan.workspace_bytes + plan.reserve_bytes
