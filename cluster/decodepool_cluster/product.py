"""The product in a cluster: its images and a model on the nodes, its chart installed, its example pool served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

from decodepool_sizing.cache_folder import cache_folder

from decodepool_cluster import images
from decodepool_cluster.cluster import Cluster
from decodepool_cluster.linux import ClusterFault

CHART = images.SOURCE / "charts" / "decodepool"
EXAMPLE = images.SOURCE / "examples" / "smollm2.yaml"
POOL = "smollm2"
RELEASE = "decodepool"
SYSTEM = "decodepool-system"
"""The operator's namespace."""
INSTALL_SECONDS = 180
READY_SECONDS = 300
ANSWER_SECONDS = 60


def model() -> Path:
    """Return the example's model in the user's cache. ClusterFault if it is not there."""
    path = cache_folder("models") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        raise ClusterFault(f"{path} is missing: `make model` puts it there")
    return path


def furnish(cluster: Cluster) -> None:
    """Put the images and the example's model on every node."""
    with images.archive(*images.TARGETS) as archive:
        cluster.load(archive)
    cluster.put_model(model())


def install(cluster: Cluster, *options: str) -> None:
    """Install the chart, or upgrade it, and return once the operator is ready; options are helm's, as `--set`."""
    where = [RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace"]
    wait = ["--wait", "--timeout", f"{INSTALL_SECONDS}s"]
    cluster.run("helm", "upgrade", "--install", *where, *wait, *options, seconds=INSTALL_SECONDS + 30)


def serve_example(cluster: Cluster) -> None:
    """Apply the example's pool and return once it is ready. ClusterFault with the pool's own words if it is not."""
    cluster.kubectl("apply", "-f", str(EXAMPLE))
    waiting = ["wait", "--for=condition=Ready", f"decodepool/{POOL}", f"--timeout={READY_SECONDS}s"]
    try:
        cluster.kubectl(*waiting, seconds=READY_SECONDS + 30)
    except ClusterFault as fault:
        told = cluster.get("decodepool", POOL).get("status", {}).get("conditions", [])
        reasons = "; ".join(f"{each['type']} {each['status']}: {each.get('message')}" for each in told)
        raise ClusterFault(
            f"the pool {POOL} is not ready after {READY_SECONDS} s: {reasons or 'no conditions'}"
        ) from fault


def answer(port: int, question: str) -> Iterator[str]:
    """Stream the answer of an endpoint on localhost, piece by piece."""
    endpoint = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    endpoint.request("GET", "/v1/models")
    name = json.load(endpoint.getresponse())["data"][0]["id"]
    body = {"model": name, "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
    endpoint.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    for line in endpoint.getresponse():
        data = line.decode().removeprefix("data: ").strip()
        if data.startswith("{"):
            yield json.loads(data)["choices"][0]["delta"].get("content") or ""
    endpoint.close()
