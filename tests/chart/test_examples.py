"""Every example is taken by a real API server as it is, and an HPA finds a pool that it can scale."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from decodepool_cluster.cluster import Cluster

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


def test_an_hpa_finds_the_pool_and_its_workers(server: Cluster, namespace: str) -> None:
    server.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / "hpa.yaml"))
    status = {"status": {"replicas": 1, "selector": "decodepool.dev/pool=by-hpa"}}
    server.kubectl("patch", "decodepool", "by-hpa", "-n", namespace, "--subresource=status", "--type=merge",
                   "-p", json.dumps(status))  # fmt: skip
    found = conditions_of_hpa(server, namespace)
    assert found["AbleToScale"]["reason"] == "SucceededGetScale"
    assert found["ScalingActive"]["reason"] == "FailedGetObjectMetric", "nobody serves metrics here"


def conditions_of_hpa(server: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    """What the HPA's controller says, once it has looked."""
    deadline = time.monotonic() + HPA_SECONDS
    while time.monotonic() < deadline:
        status = server.get("hpa", "by-hpa", namespace).get("status", {})
        found = {each["type"]: each for each in status.get("conditions") or ()}
        if "ScalingActive" in found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"the HPA's controller has not looked within {HPA_SECONDS} s")
