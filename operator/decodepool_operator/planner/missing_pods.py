"""Why a pool has not all its workers, or not all its gateways: a pod's trouble, or why pods cannot be made."""

from __future__ import annotations

from decodepool_operator.names import GATEWAY, WORKER
from decodepool_operator.planner.cache_troubles import cache_trouble
from decodepool_operator.planner.nodes import PRODUCT_LABEL, labels
from decodepool_operator.planner.situation import Situation
from decodepool_operator.planner.troubles import UNSCHEDULABLE, Trouble, condition_of
from decodepool_operator.texts import steady


def trouble_of(seen: Situation) -> Trouble | None:
    """Return what keeps the pool from having all its workers."""
    if len(seen.workers.alive) < seen.wanted:
        unmade = _refused_pods(seen, WORKER)
        if unmade is None and seen.failing is not None:
            unmade = Trouble(seen.failing.reason, seen.failing.told())
        if unmade is not None:
            return unmade
    trouble = seen.workers.trouble
    about_cache = cache_trouble(seen, trouble)
    if about_cache is not None:
        return about_cache
    if trouble is not None and trouble.reason == UNSCHEDULABLE:
        return Trouble(trouble.reason, trouble.message + _other_products(seen))
    return trouble


def gateway_trouble_of(seen: Situation) -> Trouble | None:
    """Return what keeps the pool from having all its gateways. While they are replaced there is one more than is
    wanted: that none of the present template can be made leaves as many as there were.
    """
    pods, wanted = seen.gateways, seen.pool.spec.gateway.replicas
    refused = _refused_pods(seen, GATEWAY) if len(pods.current) < wanted else None
    if refused is None and seen.gateways_failing is not None and len(pods.alive) < wanted:
        return Trouble(seen.gateways_failing.reason, seen.gateways_failing.told())
    return refused or pods.trouble


def _refused_pods(seen: Situation, component: str) -> Trouble | None:
    """Return why the API server makes no more pods of a component, as its Deployment tells it."""
    live = seen.live.get(("Deployment", seen.pool.child(component)), {})
    refused = condition_of(live, "ReplicaFailure")
    if refused.get("status") != "True":
        return None
    message = steady(str(refused.get("message")), seen.pool.name)
    return Trouble("QuotaExceeded" if "exceeded quota" in message else "FailedCreate", message)


def _other_products(seen: Situation) -> str:
    """Return which products there are, where no node has the one that was asked for: often it is only written so."""
    asked, nodes = seen.pool.spec.accelerator.product, seen.observed.nodes or ()
    products = sorted({product for node in nodes if (product := labels(node).get(PRODUCT_LABEL))})
    if asked is None or asked in products or not nodes:
        return ""
    return f"; no node has {PRODUCT_LABEL}={asked}: there {'are ' + ', '.join(products[:5]) if products else 'is none'}"
