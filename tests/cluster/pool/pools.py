"""A DecodePool in a real cluster, as the people who run it and the clients who use it see it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from decodepool_cluster.linux import wait_until
from decodepool_operator.api.faults import ApiFault
from decodepool_operator.api.kinds import EVENTS, PODS, POOLS

from tests.cluster.shell.plane import DEPLOYMENTS, Plane
from tests.serving.http_client import Client, events

Object = dict[str, Any]
READY_SECONDS = 240
CPU: Object = {"contextTokens": 1024, "sessionsPerWorker": 4, "accelerator": {"type": "cpu"}}
"""What the pools of these tests have in common, beside a model."""


def host_path(file: str) -> Object:
    """A model on the node, where `put_model` puts it."""
    return {"source": {"hostPath": {"path": f"/var/lib/decodepool/models/{file}"}}}


def condition_in(status: Object, kind: str) -> Object:
    """One condition of a status; an empty one where it has none."""
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})


@dataclass(frozen=True)
class Pool:
    """One pool, by its name."""

    plane: Plane
    namespace: str
    name: str

    def make(self, model: Object, **spec: Any) -> Pool:
        """Make it, of CPU workers."""
        body = {"apiVersion": POOLS.api_version, "kind": POOLS.name, "metadata": {"name": self.name}}
        self.plane.cluster.apply({**body, "spec": {**CPU, "model": model, **spec}}, namespace=self.namespace)
        return self

    def change(self, **spec: Any) -> None:
        """Merge into its spec."""
        self.plane.set_spec(self.namespace, self.name, **spec)

    def scale(self, replicas: int) -> None:
        self.plane.cluster.kubectl("scale", "dpool", self.name, "-n", self.namespace, f"--replicas={replicas}")

    def delete(self) -> None:
        self.plane.delete(POOLS, self.namespace, self.name)

    def get(self) -> Object:
        return self.plane.pool(self.namespace, self.name)

    def status(self) -> Object:
        found: Object = self.get().get("status") or {}
        return found

    def condition(self, kind: str) -> Object:
        """A condition that is of the present generation; an empty one otherwise."""
        pool = self.get()
        found = condition_in(pool.get("status") or {}, kind)
        return found if found.get("observedGeneration") == pool["metadata"]["generation"] else {}

    def is_ready(self) -> bool:
        return self.condition("Ready").get("status") == "True"

    def wait_ready(self, seconds: float = READY_SECONDS) -> Pool:
        self._wait(self.is_ready, "be Ready", seconds)
        return self

    def wait_condition(self, kind: str, reason: str, seconds: float = READY_SECONDS) -> str:
        """Wait for a condition's reason; return its message."""
        self._wait(lambda: self.condition(kind).get("reason") == reason, f"have {kind} say {reason}", seconds)
        return str(self.condition(kind)["message"])

    def pods(self, component: str = "worker") -> list[Object]:
        """Its pods, those that end too, oldest first."""
        selector = f"decodepool.dev/pool={self.name},app.kubernetes.io/component={component}"
        found = self.plane.api.call("GET", PODS.path(self.namespace), query=[("labelSelector", selector)])["items"]
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def worker(self, pod: Object | None = None) -> Client:
        """A client of one worker, past the gateway: of the oldest that is not ending, unless one is given."""
        asked = pod or next(each for each in self.pods() if "deletionTimestamp" not in each["metadata"])
        address = asked["status"]["podIP"]
        return Client(f"http://{address}:8000", 8000, host=address)

    def deployment(self) -> Object:
        return self.plane.api.get(DEPLOYMENTS, self.namespace, f"{self.name}-worker")

    def endpoint(self) -> Client:
        """A client of the endpoint that the status tells, its name found by the cluster's DNS."""
        url = self.status()["endpoint"]
        name = str(urlsplit(url).hostname)
        found = self.plane.cluster.run(*self.plane.cluster.with_names("getent", "ahostsv4", name))
        return Client(url, urlsplit(url).port or 80, host=found.split()[0])

    def events(self) -> list[Object]:
        """The events about it."""
        items = self.plane.api.call("GET", EVENTS.path(self.namespace))["items"]
        return [each for each in items if each["involvedObject"].get("name") == self.name]

    def set_pod_status(self, pod: str, **status: Any) -> None:
        """Write a pod's status, as a kubelet does."""
        self.plane.change(PODS, self.namespace, pod, {"status": status}, "status")

    def _wait(self, is_true: Any, what: str, seconds: float) -> None:
        def asked() -> bool:
            with suppress(ApiFault):
                return bool(is_true())
            return False

        try:
            wait_until(asked, f"{self.name} to {what}", seconds, 0.2)
        except Exception as error:
            told = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in self.status()["conditions"]]
            raise AssertionError(f"{error}; {'; '.join(told)}") from error


@contextmanager
def seen(pool: Pool) -> Iterator[list[Object]]:
    """Every version of a pool that the API server has had since, in order: no moment between is missed."""
    command = ["kubectl", "get", "dpool", pool.name, "-n", pool.namespace, "-o", "json", "--watch"]
    running = pool.plane.cluster
    versions: list[Object] = []
    process = subprocess.Popen(running.inside(*command), env=running.environment, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                versions.append(json.loads("".join(lines)))
                lines.clear()

    reader = threading.Thread(target=read)
    with process:
        reader.start()
        try:
            wait_until(lambda: versions, "the first version")
            yield versions
        finally:
            process.kill()
            reader.join()


@dataclass
class Stream:
    """A decode that is streamed in the background. `lines` grow as they come; `fault` is how the connection broke."""

    client: Client
    session: str
    body: Object
    lines: list[str] = field(default_factory=list)
    fault: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self.client.open_stream(self.session, ignore_eos=True, **self.body) as lines:
                for line in lines:
                    self.lines.append(line)
        except BaseException as error:
            self.fault = error

    def events(self) -> list[Object]:
        """What came so far, whole events only."""
        text = "".join(f"{line}\n" for line in self.lines)
        return events(text[: text.rfind("\n\n") + 1])

    def tokens(self) -> list[int]:
        return [each["data"]["token"] for each in self.events() if each.get("event") == "token"]

    def end(self, seconds: float) -> Object:
        """Wait for its end; return its last event."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the stream goes on"
        assert self.fault is None, f"the connection broke: {self.fault!r}"
        return self.events()[-1]
