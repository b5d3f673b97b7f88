"""`make cluster`: a cluster with the product and a pool in it, reached from this machine, which goes on running."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

from decodepool_cluster import images, product, tools
from decodepool_cluster.cluster import HOME, Cluster
from decodepool_cluster.linux import ClusterFault, wait_until
from decodepool_cluster.say import say

QUESTION = "What is the capital of France? Answer in one sentence."
PORTS = range(8000, 8100)
ENDPOINT = f"{product.POOL}.default.svc.cluster.local"
ENDPOINT_PORT = 80


def up(cluster: Cluster) -> None:
    """Start everything anew, show an answer, and leave it running."""
    asked_port()
    model = product.model()
    tools.build()
    with images.archive(*images.TARGETS) as archive:
        cluster.stop()
        port = free_port()
        say("starting etcd, the control plane and a node")
        try:
            cluster.start()
            write_exec(cluster)
            cluster.load(archive)
            cluster.put_model(model)
            serve(cluster, port)
        except ClusterFault as fault:
            raise ClusterFault(
                f"{fault}\nlook into it by `{inside(cluster)} kubectl ...`, end it by `{ending(cluster)}`"
            ) from fault
        except KeyboardInterrupt:
            say("interrupted: what was started is stopped")
            cluster.stop()
            raise


def serve(cluster: Cluster, port: int) -> None:
    """Install the product in a cluster that has its images and model, and show that it answers on a port."""
    say("installing charts/decodepool")
    product.install(cluster)
    say("applying examples/smollm2.yaml: a Job reads the model's header, a worker loads it, a gateway finds the worker")
    product.serve_example(cluster)
    relay(cluster, port)
    show(cluster, port)


def write_exec(cluster: Cluster) -> None:
    """Write HOME/exec, which runs a command inside the cluster's network."""
    changed = {key: value for key, value in cluster.environment.items() if os.environ.get(key) != value}
    exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in changed.items() if key != "PATH")
    script = cluster.home / "exec"
    script.write_text(
        "#!/bin/sh\n"
        "# Runs a command inside the local cluster's network, with its kubectl, helm and names of Services.\n"
        f'export {exports} PATH={shlex.quote(str(cluster.tools))}:"$PATH"\n'
        f'exec {shlex.join(cluster.inside_with_names())} "$@"\n'
    )
    script.chmod(0o755)


def relay(cluster: Cluster, port: int) -> None:
    """Have the pool's Service answer on a port of this machine's localhost, too."""
    command = [sys.executable, "-m", "decodepool_cluster.relay", str(port), f"{ENDPOINT}:{ENDPOINT_PORT}"]
    names = cluster.with_names(*command, str(cluster.network))
    cluster.processes.spawn("relay", names, cluster.environment)
    wait_until(lambda: can_connect(port), "the relay")


def asked_port() -> int | None:
    """Return $PORT, None where it is not set. ClusterFault if it is no port."""
    wanted = os.environ.get("PORT", "")
    if not wanted:
        return None
    if not (wanted.isdecimal() and 0 < int(wanted) < 1 << 16):
        raise ClusterFault(f"PORT={wanted} is not a port")
    return int(wanted)


def free_port() -> int:
    """Return $PORT, or the first from 8000 that is free, and say so where it is another. ClusterFault if none is."""
    asked = asked_port()
    wanted = range(asked, asked + 1) if asked else PORTS
    port = next((port for port in wanted if is_free(port)), None)
    if port is None:
        taken = f"port {asked} is" if asked else f"ports {PORTS.start} to {PORTS.stop - 1} are"
        raise ClusterFault(f"{taken} taken: choose another, as by PORT=9000 make cluster")
    if port != wanted.start:
        say(f"port {wanted.start} is taken on this machine: the pool will answer on port {port} (PORT=9000 chooses)")
    return port


def is_free(port: int) -> bool:
    """Tell whether a port of localhost can be listened on."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def can_connect(port: int) -> bool:
    """Tell whether something listens on a port of localhost."""
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


def show(cluster: Cluster, port: int) -> None:
    """Print the pool, an answer as it comes, and where to go on."""
    url, write = f"http://127.0.0.1:{port}", sys.stdout.write
    write(f"\n{cluster.kubectl('get', 'decodepools')}\n> {QUESTION}\n")
    for piece in product.answer(port, QUESTION):
        write(piece)
        sys.stdout.flush()
    write(
        f"\n\n  watch it      {url}/\n  openai SDK    base_url={url}/v1\n"
        f"  look inside   {inside(cluster)} kubectl get pods\n"
        f"  stop it       {ending(cluster)}\n"
    )


def inside(cluster: Cluster) -> str:
    """Return what a person types before a command that is to run in the cluster."""
    script, here = cluster.home / "exec", Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def ending(cluster: Cluster) -> str:
    """Return what a person types to stop the cluster."""
    if cluster.home == HOME.resolve():
        return "make cluster-down"
    return f"python -m decodepool_cluster --home {shlex.quote(str(cluster.home))} down"
