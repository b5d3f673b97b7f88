"""What the Prometheus adapter is for an HPA: a server of custom.metrics.k8s.io behind the API server's aggregation.

It has the metrics of pools that a test gives it.
"""

from __future__ import annotations

import datetime
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from decodepool_cluster import addresses
from decodepool_cluster.cluster import Cluster

VERSION = "custom.metrics.k8s.io/v1beta2"
PORT = 8443


class MetricsSource:
    """`values` are the metrics that there are: by the name of a pool and of its metric."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], int] = {}

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return what is answered to a path, None where there is nothing."""
        root = f"/apis/{VERSION}"
        if path.rstrip("/") == root:
            return self._resources()
        parts = path.removeprefix(root).strip("/").split("/")
        if len(parts) != 5 or (parts[3], parts[4]) not in self.values:
            return None
        _, namespace, _, pool, metric = parts
        return _list(namespace, pool, metric, self.values[pool, metric])

    def _resources(self) -> dict[str, Any]:
        names = {f"decodepools.decodepool.dev/{metric}" for _, metric in self.values}
        found = [{"name": name, "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]} for name in names]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": found}


def _list(namespace: str, pool: str, metric: str, value: int) -> dict[str, Any]:
    described = {
        "apiVersion": "decodepool.dev/v1alpha1",
        "kind": "DecodePool",
        "namespace": namespace,
        "name": pool,
    }
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"describedObject": described, "metric": {"name": metric}, "timestamp": now, "value": str(value)}
    return {"kind": "MetricValueList", "apiVersion": VERSION, "metadata": {}, "items": [item]}


@contextmanager
def served(source: MetricsSource, cluster: Cluster, folder: Path) -> Iterator[None]:
    """Serve the source inside the cluster's network, where the API server looks for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(folder))
    with cluster.entered():
        server = ThreadingHTTPServer((addresses.CONTROL_PLANE, PORT), _handler(source))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": _objects()}))
    try:
        cluster.kubectl("wait", "--for=condition=Available", f"apiservice/{_api_service()}", "--timeout=60s")
        yield
    finally:
        cluster.kubectl("delete", "apiservice", _api_service())
        server.shutdown()
        server.server_close()


def _handler(source: MetricsSource) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = source.answer(self.path.partition("?")[0])
            body = json.dumps(
                found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            ).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    return Handler


def _api_service() -> str:
    group, version = VERSION.split("/")
    return f"{version}.{group}"


def _objects() -> list[dict[str, Any]]:
    """The API that is extended, and the Service without pods that leads here."""
    group, version = VERSION.split("/")
    name = {"name": "metrics-source", "namespace": "kube-system"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": name}
    port = {"name": "https", "port": 443, "protocol": "TCP"}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**name, "labels": {"kubernetes.io/service-name": "metrics-source"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [addresses.CONTROL_PLANE], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": PORT, "protocol": "TCP"}],
    }
    extended = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": _api_service()},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {**name, "port": 443},
        },
    }
    return [{**service, "spec": {"ports": [{**port, "targetPort": PORT}]}}, slice_, extended]


def _certificate(folder: Path) -> Path:
    """Write a certificate that nobody trusts, and its key, into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metrics-source")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "metrics-source.pem"
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path
