"""The cluster: start it, use it, break and mend its parts, stop it without a trace.

The whole of it lives in one network namespace that has no link to the outside: fixed ports never collide, no packet can
leave, nothing of the machine's own network changes. Pods are routed and not bridged. Everything it writes is under its
home.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from signal import Signals
from typing import Any

from decodepool_cluster import addresses, archives, linux, making, parts
from decodepool_cluster.linux import ClusterFault, run, wait_until
from decodepool_cluster.processes import Processes

HOME = Path(__file__).parents[2] / ".cluster"
"""Where `make cluster` has its cluster."""
MARK = "this-is-a-cluster"
"""A file that tells a cluster's home from any other folder, which `stop` must not remove."""
START_SECONDS = 60
NODES_SECONDS = 120
MODELS = "decodepool/models"
"""Where models lie on a node, under its /var/lib."""


class Cluster:
    """A cluster in a folder, running or not. All that fails outside of it is a ClusterFault.

    Its parts are named as in `parts.CONTROL_PLANE`, and `node-1` to `node-9`.
    """

    def __init__(self, home: Path, tools: Path) -> None:
        self.home = home.resolve()
        self.tools = tools.resolve()
        self.network = self.home / "network"  # a mount that keeps the network namespace alive
        self.cgroup = "decodepool-" + sha256(bytes(self.home)).hexdigest()[:8]
        self.processes = Processes(self.home)

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment in which `kubectl` and `helm` are the cluster's own, and keep nothing outside of it."""
        path = f"{self.tools}:{os.environ['PATH']}"
        kept = {f"HELM_{kind}_HOME": f"{self.home}/helm" for kind in ("CACHE", "CONFIG", "DATA")}
        own = {"KUBECONFIG": f"{self.home}/admin.kubeconfig", "KUBECACHEDIR": f"{self.home}/kubectl"}
        return os.environ | {"PATH": path} | own | kept

    # The whole

    def start(self, nodes: int = 1) -> None:
        """Start anew, with `nodes` real nodes, and return once they are ready."""
        self.stop()
        self.home.mkdir(parents=True, exist_ok=True)
        making.write(self.home / MARK, "This folder belongs to a local cluster, which removes it when it is stopped.\n")
        (self.home / "images").mkdir()
        archives.write_pause(self.home / "pause.tar")
        self.load(self.home / "pause.tar")
        making.network(self.network)
        making.control_plane(self.home)
        for part in parts.CONTROL_PLANE:
            self.revive(part)
            if part == "kube-apiserver":
                wait_until(self.is_serving, "the API server", START_SECONDS)
        self.add_nodes(nodes)

    def add_nodes(self, nodes: int) -> None:
        """Have node-1 to node-`nodes` running and ready."""
        names = list(addresses.NODES)[:nodes]
        for name in names:
            if not self.processes.is_alive(name):
                self.revive(name)
        wait_until(lambda: set(names) <= self.ready_nodes(), f"{nodes} ready nodes", NODES_SECONDS)

    def remove_node(self, name: str) -> None:
        """Take a node away as if it had never been."""
        self.kill(name)
        self.kubectl("delete", "node", name, "--ignore-not-found")
        shutil.rmtree(self.home / "nodes" / name)

    def stop(self) -> None:
        """End every part and remove every trace: processes, mounts, cgroups, the home.

        ClusterFault, with nothing done, if the home is a folder of something else.
        """
        if self.home.exists() and not (self.home / MARK).exists() and any(self.home.iterdir()):
            raise ClusterFault(f"{self.home} is no cluster's folder: it is left as it is")
        for name in self.processes.names():
            self.kill(name)
        if os.path.ismount(self.network):  # Path.is_mount is False for a file
            run(["umount", str(self.network)])
        linux.remove_cgroup(self.cgroup)
        making.remove(self.home, last=MARK)

    def is_started(self) -> bool:
        """Tell whether it was started, and not stopped since; its parts may be dead."""
        return os.path.ismount(self.network)

    def is_running(self) -> bool:
        """Tell whether the API server answers."""
        with suppress(ClusterFault, OSError):
            return self.is_serving()
        return False

    # Its use

    def entered(self) -> AbstractContextManager[None]:
        """Have the calling thread, and the threads and processes it starts meanwhile, inside the cluster's network."""
        return linux.network_of(self.network)

    def enter(self) -> None:
        """Move the calling thread, and what it starts from now on, into the cluster's network, for good."""
        linux.move_into(self.network)

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs `command` inside the cluster's network."""
        return ["nsenter", f"--net={self.network}", "--", *command]

    def with_names(self, *command: str) -> list[str]:
        """Return the command that runs `command` with the cluster's names of Services, on a machine's own network."""
        bind = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", bind, f"{self.home}/resolv.conf", *command]

    def inside_with_names(self, *command: str) -> list[str]:
        """Return the command that runs `command` inside, with the names of Services: as a person would want it."""
        return self.inside(*self.with_names(*command))

    def run(self, *command: str, given: str | None = None, seconds: float = 120) -> str:
        """Run a command inside, `kubectl` and `helm` being the cluster's; return what it printed."""
        return run(self.inside(*command), environment=self.environment, given=given, seconds=seconds)

    def kubectl(self, *arguments: str, given: str | None = None, seconds: float = 120) -> str:
        """Run kubectl as the cluster's administrator; `given` is its standard input."""
        return self.run("kubectl", *arguments, given=given, seconds=seconds)

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """Return an object. ClusterFault, saying NotFound, if there is none."""
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def items(self, kind: str, namespace: str = "default", selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind in a namespace, or of several kinds joined by commas."""
        told = self.kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json")
        found: list[dict[str, Any]] = json.loads(told)["items"]
        return found

    def apply(self, *objects: dict[str, Any], namespace: str = "default") -> None:
        """Apply objects, by `kubectl apply`, with strict validation."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "-n", namespace, "--validate=strict", "-f", "-", given=json.dumps(listed))

    def load(self, archive: Path) -> None:
        """Import an image archive into every running node, and into those that start later."""
        kept, stamp = self.home / "images" / archive.name, f"{archive.resolve()} {archive.stat().st_mtime_ns}"
        kept.unlink(missing_ok=True)
        try:
            kept.hardlink_to(archive)
        except OSError:
            shutil.copyfile(archive, kept)
        kept.with_suffix(".stamp").write_text(stamp)
        for node in self.nodes():
            self._import(node, kept, stamp)

    def _import(self, node: str, archive: Path, stamp: str) -> None:
        mark = self.node_storage(node) / f"{archive.stem}.stamp"
        if not mark.exists() or mark.read_text() != stamp:
            shell = linux.first_child(self.processes.pid(node))
            imported = ["ctr", "-n", "k8s.io", "images", "import", str(archive)]
            run(["nsenter", f"--target={shell}", "--mount", *imported], environment=self.environment)
            mark.write_text(stamp)

    def put_model(self, file: Path) -> None:
        """Copy a model to /var/lib/decodepool/models of every running node."""
        for node in self.nodes():
            folder = self.node_storage(node) / MODELS
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file.name)

    def node_storage(self, node: str) -> Path:
        """Return where a node's /var/lib lies on this machine."""
        return self.home / "nodes" / node / "lib"

    def offer(self, node: str, resource: str, count: int | None) -> None:
        """Have a node offer `count` of an extended resource, as `nvidia.com/gpu`; None takes it back.

        Nothing is behind it: pods are scheduled by it, and see no device.
        """
        path = f"/status/capacity/{resource.replace('/', '~1')}"
        change = {"op": "remove", "path": path} if count is None else {"op": "add", "path": path, "value": str(count)}
        self.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps([change]))
        wanted = None if count is None else str(count)
        wait_until(lambda: self._allocatable(node).get(resource) == wanted, f"{node} to offer {count} {resource}")

    # Its parts

    def nodes(self) -> list[str]:
        """Return the names of the nodes that run."""
        return sorted(name for name in addresses.NODES if self.processes.is_alive(name))

    def ready_nodes(self) -> set[str]:
        """Return the names of the nodes that say they are ready."""
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return {node["metadata"]["name"] for node in nodes if _is_ready(node)}

    def kill(self, part: str) -> None:
        """End one part at once, as a loss of power does, and wait until it is gone."""
        self.processes.kill(part)
        linux.remove_cgroup(f"{self.cgroup}/{part}")  # what is left of a node would slow its next start

    def revive(self, part: str) -> None:
        """Start one part; it finds its data as a kill left it. ClusterFault if it runs."""
        if self.processes.is_alive(part):
            raise ClusterFault(f"{part} runs already")
        if part in addresses.NODES:
            self.processes.spawn(
                part, self.inside(*parts.NODE), self.environment | making.node(self.home, part, self.cgroup)
            )
        else:
            self.processes.spawn(part, self.inside(*parts.CONTROL_PLANE[part](self.home)), self.environment)

    def freeze(self, part: str) -> None:
        """Stop a part of the control plane in its tracks: its connections stay open and silent."""
        self.processes.freeze(part)

    def thaw(self, part: str) -> None:
        """Have a frozen part go on."""
        self.processes.thaw(part)

    def signal_container(self, pod: str, namespace: str, signal: Signals, container: str | None = None) -> None:
        """Send a signal to all processes of a pod's container, the first if none is named, behind kubelet's back."""
        statuses = self.get("pod", pod, namespace)["status"].get("containerStatuses", [])
        ids = {each["name"]: each.get("containerID", "").rpartition("/")[2] for each in statuses}
        wanted = ids.get(container or next(iter(ids), ""))
        if not wanted:
            raise ClusterFault(f"pod {namespace}/{pod} has no running container {container or ''}")
        for pid in linux.processes_in(self.cgroup, wanted):
            with suppress(ProcessLookupError):
                os.kill(pid, signal)

    def is_serving(self) -> bool:
        """Tell whether the API server is ready. ClusterFault if it or etcd has ended."""
        for part in ("etcd", "kube-apiserver"):
            if not self.processes.is_alive(part):
                raise ClusterFault(f"{part} is not running: {self.processes.log(part)} may say why")
        return self.kubectl("get", "--raw", "/readyz") == "ok"

    def _allocatable(self, node: str) -> dict[str, str]:
        allocatable: dict[str, str] = self.get("node", node)["status"]["allocatable"]
        return allocatable


def _is_ready(node: dict[str, Any]) -> bool:
    return any(told["type"] == "Ready" and told["status"] == "True" for told in node["status"].get("conditions", ()))
