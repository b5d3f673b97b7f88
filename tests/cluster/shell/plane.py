"""A real control plane without nodes, and the operator as a process beside it: to be killed, blinded and confused."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import wait_until
from decodepool_operator.api.client import MERGE, Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import CHILDREN, POOLS, Kind
from decodepool_operator.shell.installed import has_pools
from kubernetes import client, config

Object = dict[str, Any]
DEPLOYMENTS = next(kind for kind in CHILDREN if kind.name == "Deployment")
NAMESPACES = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
TESTER = [("fieldManager", "tester")]
IMAGES = {f"DECODEPOOL_{name}_IMAGE": name.lower() for name in ("WORKER", "WORKER_CUDA", "GATEWAY", "OPERATOR")}


class Plane:
    """The control plane, as whoever writes to it beside the operator sees it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        configuration = client.Configuration()
        config.load_kube_config(f"{cluster.home}/admin.kubeconfig", client_configuration=configuration)  # type: ignore[no-untyped-call]
        configuration.retries = False
        self.api = Api(client.ApiClient(configuration))

    def install(self, definition: Object) -> None:
        """Install a CRD, or another release of it, and wait until pools are served."""
        apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        self.cluster.kubectl(*apply, given=json.dumps(definition))
        until(lambda: has_pools(self.api), "pools to be served")

    def pool(self, namespace: str, name: str) -> Object:
        return self.api.get(POOLS, namespace, name)

    def make(self, namespace: str, name: str, url: str, **spec: Any) -> None:
        """Make a CPU pool of a model behind a URL."""
        base = {"model": {"source": {"http": {"url": url}}}, "contextTokens": 128, "accelerator": {"type": "cpu"}}
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": POOLS.api_version, "kind": POOLS.name, "metadata": metadata, "spec": {**base, **spec}}
        self.api.call("POST", POOLS.path(namespace), body, query=TESTER)

    def change(self, kind: Kind, namespace: str, name: str, patch: Object, subresource: str | None = None) -> Object:
        """Merge a patch into an object, as somebody else."""
        path = kind.path(namespace, name, subresource)
        return self.api.call("PATCH", path, patch, content_type=MERGE, query=TESTER)

    def set_spec(self, namespace: str, name: str, **spec: Any) -> None:
        self.change(POOLS, namespace, name, {"spec": spec})

    def delete(self, kind: Kind, namespace: str | None, name: str) -> None:
        with suppress(ApiFault):
            self.api.call("DELETE", kind.path(namespace, name))

    def names(self, kind: Kind, namespace: str) -> set[str]:
        items = self.api.call("GET", kind.path(namespace))["items"]
        return {item["metadata"]["name"] for item in items}

    def namespaces(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.api.call("GET", NAMESPACES.path())["items"]}

    def children(self, namespace: str) -> set[tuple[str, str]]:
        """Everything labelled as a pool's, by kind and name."""
        found = set()
        for kind in CHILDREN:
            items = self.api.call("GET", kind.path(namespace), query=[("labelSelector", "decodepool.dev/pool")])[
                "items"
            ]
            found |= {(kind.name, item["metadata"]["name"]) for item in items}
        return found

    def condition(self, namespace: str, name: str, kind: str) -> Mapping[str, Any]:
        conditions = (self.pool(namespace, name).get("status") or {}).get("conditions") or []
        return next((each for each in conditions if each["type"] == kind), {})

    def follows(self, namespace: str, name: str, sessions: int) -> bool:
        """Whether workers and status are of the last spec, which wants this many sessions a worker."""
        pool = self.pool(namespace, name)
        status = pool.get("status") or {}
        worker = self.api.get(DEPLOYMENTS, namespace, f"{name}-worker")
        arguments = worker["spec"]["template"]["spec"]["containers"][0]["args"]
        return bool(
            pool["spec"]["sessionsPerWorker"] == sessions
            and status.get("observedGeneration") == pool["metadata"]["generation"]
            and status.get("plan", {}).get("sessionsPerWorker") == sessions
            and f"--sessions={sessions}" in arguments
        )

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace for one test; its deletion is not waited for."""
        name = f"test-{time.monotonic_ns() % 10**10}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.api.call("POST", NAMESPACES.path(), body)
        try:
            yield name
        finally:
            self.delete(NAMESPACES, None, name)


def until(is_true: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait for something; an API server that is away, or an object that is not there yet, is not yet."""

    def asked() -> object:
        try:
            return is_true()
        except ApiFault as fault:
            if fault.refusal in (Refusal.NOT_FOUND, Refusal.UNAVAILABLE):
                return False
            raise

    wait_until(asked, what, seconds)


class OperatorProcess:
    """The operator, run as on a node: killed, ended, asked for its health."""

    def __init__(self, kubeconfig: Path, log: Path, **settings: str) -> None:
        self.log = log
        self.port = free_port()
        own = {f"DECODEPOOL_{name}": value for name, value in settings.items()}
        self._environment = {
            **os.environ, **IMAGES, "KUBECONFIG": str(kubeconfig), "DECODEPOOL_HTTP_PORT": str(self.port), **own,
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The PID of the running process, None where it has ended."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, *, ready: bool = True) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "decodepool_operator"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        if ready:
            wait_until(lambda: self.probe("/readyz") == 200, "the operator to be ready", 60)

    def kill(self) -> None:
        """Kill it as a loss of power does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """End it as a kubelet does; return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def probe(self, path: str) -> int:
        """Return the status of a probe, 0 where the port does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        return sum(self.metrics(name).values())

    def metrics(self, name: str) -> dict[str, float]:
        """Return a metric's samples, by their labels as they are printed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines)
        return {sample: float(value) for sample, _, value in samples if sample.split("{")[0] == name}

    def peak_mib(self) -> int:
        """Return the most memory that it had resident since it began."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return round(int(kibibytes) / 1024)

    def records(self) -> list[Object]:
        """Return what it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
