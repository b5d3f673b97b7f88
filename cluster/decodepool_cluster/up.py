"""`make cluster`: a cluster with the product and a pool in it, reached from this machine, which goes on running."""

from __future__ import annotations

import os
import shlex
import socket
import sys

from decodepool_cluster import images, product, tools
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault, wait_until
from decodepool_cluster.say import say

QUESTION = "What is the capital of France? Answer in one sentence."
PORTS = range(8000, 8100)
ENDPOINT = f"{product.POOL}.default.svc.cluster.local"
ENDPOINT_PORT = 80


def up(cluster: Cluster) -> None:
    """Start everything anew, show an answer, and leave it running."""
    asked_port()
    tools.build()
    archive = images.archive(*images.TARGETS)
    say("starting the cluster")
    cluster.start()
    write_exec(cluster)
    try:
        cluster.load(archive)
        cluster.put_model(product.model())
        say("installing charts/decodepool, applying examples/smollm2.yaml")
        product.install(cluster)
        product.serve_example(cluster)
        show(cluster, relay(cluster))
    except ClusterFault as fault:
        raise ClusterFault(
            f"{fault}\n{cluster.home}/exec kubectl ... looks into it, `make cluster-down` ends it"
        ) from fault


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


def relay(cluster: Cluster) -> int:
    """Have the pool's Service answer on this machine's localhost, too; return the port."""
    port = free_port()
    command = [sys.executable, "-m", "decodepool_cluster.relay", str(port), f"{ENDPOINT}:{ENDPOINT_PORT}"]
    names = cluster.with_names(*command, str(cluster.network))
    cluster.processes.spawn("relay", names, cluster.environment)
    wait_until(lambda: can_connect(port), "the relay")
    return port


def asked_port() -> int | None:
    """Return $PORT, None where it is not set. ClusterFault if it is no port."""
    wanted = os.environ.get("PORT", "")
    if not wanted:
        return None
    if not (wanted.isdecimal() and 0 < int(wanted) < 1 << 16):
        raise ClusterFault(f"PORT={wanted} is not a port")
    return int(wanted)


def free_port() -> int:
    """Return $PORT, or the first port from 8000 that nothing listens on. ClusterFault if there is none."""
    asked = asked_port()
    for port in [asked] if asked else PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not probe.connect_ex(("127.0.0.1", port)):
                continue
        return port
    raise ClusterFault(f"port {asked or f'{PORTS.start} to {PORTS.stop - 1}'} is taken: PORT=9000 make cluster")


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
        f"  look inside   {cluster.home.name}/exec kubectl get pods\n"
        "  stop it       make cluster-down\n"
    )
