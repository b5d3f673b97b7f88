"""Every example is taken by a real API server as it is, and an HPA finds a pool that it can scale."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from decodepool_cluster.cluster import Cluster

from tests.chart.metrics_source import MetricsSource, served
from tests.examples.manifests import EXAMPLES, MANIFESTS, objects, pools

pytestmark = pytest.mark.cluster

OF_OTHERS = {"keda.sh/v1alpha1"}
"""API groups whose kinds an API server has only once they are installed."""

HPA_SECONDS = 60


@pytest.fixture
def namespace(server: Cluster) -> Iterator[str]:
    """A namespace for one test, with everything in it."""
    name = f"examples-{time.monotonic_ns():x}"
    server.kubectl("create", "namespace", name)
    yield name
    server.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_every_example_is_taken_as_it_is(manifest: Path, server: Cluster, namespace: str) -> None:
    kept = [each for each in objects(manifest) if each["apiVersion"] not in OF_OTHERS]
    assert kept
    for each in kept:
        each["metadata"]["namespace"] = namespace
    given = yaml.safe_dump_all(kept)
    told = server.kubectl("apply", "--validate=strict", "-f", "-", given=given)
    assert told.count("created") == len(kept)
    again = server.kubectl("apply", "--validate=strict", "-f", "-", given=given)
    name = pools(manifest)[0]["metadata"]["name"]
    assert f"decodepool.decodepool.dev/{name} unchanged" in again, "the API server's defaults are no difference"


def test_an_hpa_scales_the_pool_by_its_sessions(server: Cluster, namespace: str, tmp_path: Path) -> None:
    """Forty sessions at eleven a worker are four workers; the pool has one."""
    _, hpa = objects(EXAMPLES / "hpa.yaml")
    (metric,) = hpa["spec"]["metrics"]
    source = MetricsSource()
    source.values["by-hpa", metric["object"]["metric"]["name"]] = 40
    with served(source, server, tmp_path):
        server.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / "hpa.yaml"))
        status = {"status": {"replicas": 1, "selector": "decodepool.dev/pool=by-hpa"}}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
        server.kubectl("patch", "decodepool", "by-hpa", "-n", namespace, *patch)
        assert replicas_other_than(1, server, namespace) == 4


def replicas_other_than(before: int, server: Cluster, namespace: str) -> int:
    """The replicas of the pool, once somebody has changed them."""
    deadline = time.monotonic() + HPA_SECONDS
    while time.monotonic() < deadline:
        found: int = server.get("decodepool", "by-hpa", namespace)["spec"]["replicas"]
        if found != before:
            return found
        time.sleep(0.5)
    raise AssertionError(server.kubectl("describe", "hpa", "by-hpa", "-n", namespace))
