"""The webhook's server: admission reviews in, patches out, over TLS with certificates that are renewed as it runs."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from decodepool_operator.api.faults import ApiFault
from decodepool_operator.connections import Connections, welcome
from decodepool_operator.planner.state import Object
from decodepool_operator.webhook.certificates import Certificates
from decodepool_operator.webhook.injection import Denied, Injected
from decodepool_operator.webhook.keeper import Keeper

CHECK_SECONDS = 60.0
MAX_REVIEW_BYTES = 4 << 20
MOST_STRANGERS = 256
"""Connections that have not asked at the path yet, each of 0.3 MiB, and 0.9 MiB with all that it may say."""

Inject = Callable[[str, Object], "Injected | Denied"]
"""Namespace and pod to what is to be done."""

log = logging.getLogger(__name__)


class WebhookServer:
    """Serves the path that its certificates are kept with, and none else."""

    def __init__(self, keeper: Keeper, inject: Inject, port: int, threads: Executor) -> None:
        self._keeper = keeper
        self._inject = inject
        self._port = port
        self._threads = threads
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: Certificates | None = None

    async def run(self) -> None:
        """Serve for ever. Certificates are checked every minute, and loaded into the running server when renewed."""
        connections = Connections(self.application(), self._port, MOST_STRANGERS, self._context)
        serving = False
        try:
            while True:
                await self._check()
                if self._loaded is not None and not serving:
                    await connections.open()
                    serving = True
                await asyncio.sleep(CHECK_SECONDS if serving else 2.0)
        finally:
            await connections.close()

    def application(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        app.router.add_post("/{path:.*}", self._review)
        return app

    async def _check(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._renew)
        except ApiFault as fault:
            log.warning("the webhook's certificates cannot be kept", extra={"fields": {"fault": fault.message}})

    def _renew(self) -> None:
        certificates = self._keeper.certificates(datetime.now(UTC))
        if certificates != self._loaded:
            load(self._context, certificates)
            self._loaded = certificates
        self._keeper.trust(certificates)

    async def _review(self, request: web.Request) -> web.Response:
        if self._loaded is None or not hmac.compare_digest(request.rel_url.raw_path.encode(), self._loaded.path):
            raise web.HTTPNotFound
        welcome(request)
        try:
            review = await request.json()
            asked = review["request"]
            uid, namespace, pod = str(asked["uid"]), str(asked["namespace"]), asked["object"]
        except (ValueError, KeyError, TypeError):
            raise web.HTTPBadRequest(text="not an AdmissionReview of a pod") from None
        return web.json_response(answer(uid, self._inject(namespace, pod)))


def answer(uid: str, outcome: Injected | Denied) -> dict[str, Any]:
    """Return the AdmissionReview that answers one."""
    response: dict[str, Any] = {"uid": uid, "allowed": isinstance(outcome, Injected)}
    if isinstance(outcome, Denied):
        response["status"] = {"code": 403, "reason": "Forbidden", "message": outcome.message}
    elif outcome.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(outcome.patch).encode()).decode()
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def load(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Load certificates into a context, for the connections that come. OpenSSL takes them from a file alone."""
    with tempfile.NamedTemporaryFile(mode="wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(certificates.server + certificates.server_key)
        file.flush()
        context.load_cert_chain(file.name)
