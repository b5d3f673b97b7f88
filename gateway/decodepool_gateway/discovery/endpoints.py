"""What EndpointSlices say about workers. Pure: objects as the API speaks them in, addresses out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from decodepool_gateway.workers import WorkerAddress

PORT_NAME = "http"


def workers_of(slices: Iterable[Mapping[str, Any]]) -> list[WorkerAddress]:
    """Return the workers of all slices of a Service, by name.

    A pod that is in two slices, as happens while they are cut anew, is taken where it is ready. Endpoints that are no
    pods, or have no address or port yet, are left out.
    """
    found: dict[str, WorkerAddress] = {}
    for each in slices:
        port = _port(each)
        for endpoint in each.get("endpoints") or ():
            worker = None if port is None else _worker(endpoint, port)
            if worker is not None and (worker.uid not in found or worker.ready):
                found[worker.uid] = worker
    return sorted(found.values(), key=lambda worker: worker.name)


def _port(piece: Mapping[str, Any]) -> int | None:
    for port in piece.get("ports") or ():
        if port.get("name") == PORT_NAME and port.get("port"):
            return int(port["port"])
    return None


def _worker(endpoint: Mapping[str, Any], port: int) -> WorkerAddress | None:
    target, addresses = endpoint.get("targetRef") or {}, endpoint.get("addresses") or ()
    if target.get("kind") != "Pod" or not target.get("uid") or not addresses:
        return None
    conditions = endpoint.get("conditions") or {}
    host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return WorkerAddress(
        uid=target["uid"],
        name=target.get("name", target["uid"]),
        url=f"http://{host}:{port}",
        ready=conditions.get("ready") is not False,  # absent means ready, says the API
        draining=bool(conditions.get("terminating")),
    )
