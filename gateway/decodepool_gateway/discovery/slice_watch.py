"""A Service's EndpointSlices, watched through the official client on a thread of its own.

A watch that has gone silent looks like a quiet one. So each watch is short, ends by the server's own clock, and is
given up soon after that; then the next one goes on from the same version, or from a new list where that version is too
old. While the API server is away, the last known workers stay.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import urllib3
from kubernetes import client, config, watch

from decodepool_gateway.discovery import Tell
from decodepool_gateway.discovery.endpoints import workers_of

logger = logging.getLogger("decodepool.gateway.discovery")

WATCH_SECONDS = 20
SILENCE_SECONDS = WATCH_SECONDS + 5
REQUEST_SECONDS = 10
RELIST_WATCHES = 15
"""Every five minutes the list is read anew, whatever the watches said."""

FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 30.0
GONE = 410

FAULTS = (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError)

Slice = Mapping[str, Any]


class EndpointSlices:
    """The workers behind a headless Service."""

    def __init__(self, namespace: str, service: str, api: client.DiscoveryV1Api) -> None:
        self._namespace = namespace
        self._selector = f"kubernetes.io/service-name={service}"
        self._api = api
        self._slices: dict[str, Slice] = {}
        self._ended = threading.Event()

    async def run(self, tell: Tell) -> None:
        """Watch until cancelled. The thread ends at the API server's next word, or with the process."""
        loop = asyncio.get_running_loop()

        def tell_the_loop() -> None:
            workers = workers_of(self._slices.values())
            with suppress(RuntimeError):  # the loop has ended: nobody listens any more
                loop.call_soon_threadsafe(tell, workers)

        thread = threading.Thread(target=self._follow, args=(tell_the_loop,), name="decodepool-watch", daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._ended.set()

    def _follow(self, told: Callable[[], None]) -> None:
        """List and watch, again and again; after a fault, later and later."""
        pause = FIRST_PAUSE_SECONDS
        while not self._ended.is_set():
            try:
                version = self._list()
                told()
                pause = FIRST_PAUSE_SECONDS
                self._watch(version, told)
            except FAULTS as error:
                if getattr(error, "status", None) == GONE:
                    continue
                logger.warning("cannot watch the workers' EndpointSlices: %s; again in %g s", _said(error), pause)
                self._ended.wait(pause)
                pause = min(2 * pause, LAST_PAUSE_SECONDS)

    def _list(self) -> str:
        """Read every slice; return the version of the list."""
        answer: Any = self._api.list_namespaced_endpoint_slice(
            self._namespace,
            label_selector=self._selector,
            _request_timeout=REQUEST_SECONDS,
            _preload_content=False,  # the bytes: `workers_of` reads objects as the API speaks them
        )
        listed = json.loads(answer.data)
        self._slices = {each["metadata"]["name"]: each for each in listed["items"]}
        return str(listed["metadata"]["resourceVersion"])

    def _watch(self, version: str, told: Callable[[], None]) -> None:
        """Watch from a version on, for a few minutes; return when it is time for a new list."""
        watching = watch.Watch(return_type="object")  # type: ignore[no-untyped-call]  # dictionaries, not models
        watching.resource_version = version
        for _ in range(RELIST_WATCHES):
            for event in watching.stream(  # type: ignore[no-untyped-call]
                self._api.list_namespaced_endpoint_slice,
                self._namespace,
                label_selector=self._selector,
                resource_version=watching.resource_version,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_SECONDS,
                _request_timeout=(REQUEST_SECONDS, SILENCE_SECONDS),
            ):
                if self._ended.is_set():
                    return
                if self._heed(event["type"], event["raw_object"]):
                    told()

    def _heed(self, kind: str, piece: Slice) -> bool:
        """Take one event; tell whether it changed anything."""
        if kind not in {"ADDED", "MODIFIED", "DELETED"}:
            return False
        name = piece["metadata"]["name"]
        if kind == "DELETED":
            return self._slices.pop(name, None) is not None
        self._slices[name] = piece
        return True


def cluster_slices(namespace: str, service: str) -> EndpointSlices:
    """Return the watch of a Service's slices with this pod's service account, or a kubeconfig where it is no pod.

    Raises `config.ConfigException` where there is neither.
    """
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    settings.retries = False  # a fault is told and paused after here
    return EndpointSlices(namespace, service, client.DiscoveryV1Api(client.ApiClient(settings)))


def _said(error: Exception) -> str:
    reason = f"{error.status} {error.reason}" if isinstance(error, client.ApiException) else str(error)
    return " ".join(reason.split())[:300]
