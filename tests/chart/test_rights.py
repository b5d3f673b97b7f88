"""The operator gets by with the rights that the chart gives it: the real program, as its account."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from decodepool_cluster.cluster import Cluster
from decodepool_operator.definition.crd import NAME

from tests.chart.rendering import CHART, Helm
from tests.chart.test_rendered import operators_environment
from tests.sizing.manifest_cases import SMALLEST

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WAIT_SECONDS = 90
MODES = {"the whole cluster": "rbac.readNodes=true", "one namespace": "watchNamespaces={served},rbac.readNodes=false"}


def until(found: Any, what: str) -> Any:
    """Ask until the answer is true; AssertionError after a while."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {WAIT_SECONDS} s")


def read(path: str, cluster: Cluster) -> str | None:
    """What the operator answers at its own port, None while it does not."""
    try:
        with cluster.entered(), urllib.request.urlopen(f"http://127.0.0.1:8080{path}", timeout=5) as answer:
            told: str = answer.read().decode()
            return told
    except (OSError, urllib.error.HTTPError):
        return None


def kubeconfig(cluster: Cluster, account: str, folder: Path) -> Path:
    """A kubeconfig of a service account."""
    token = cluster.kubectl("create", "token", account, "-n", "system").strip()
    config = yaml.safe_load(Path(cluster.environment["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@contextmanager
def operator(cluster: Cluster, helm: Helm, values: str, folder: Path) -> Iterator[Path]:
    """The operator of an installed chart, outside of a pod, with the chart's environment; yields its log."""
    rendered = helm.objects("--set", values)
    environment = {**operators_environment(rendered), "DECODEPOOL_OPERATOR_NAMESPACE": "system"}
    config = kubeconfig(cluster, "decodepool-operator", folder)
    command = cluster.inside(sys.executable, "-m", "decodepool_operator")
    log = folder / "log"
    with log.open("w") as written:
        process = subprocess.Popen(
            command, env={**os.environ, **environment, "KUBECONFIG": str(config)}, stdout=written, stderr=written
        )
        try:
            yield log
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_operator_does_its_work_with_the_charts_rights(
    mode: str, control_plane: Cluster, helm: Helm, tmp_path: Path
) -> None:
    values = f"operator.replicas=0,{MODES[mode]}"
    install = ("helm", "install", "decodepool", str(CHART), "--namespace", "system", "--create-namespace")
    control_plane.kubectl("create", "namespace", "served")
    try:
        control_plane.run(*install, "--set", values, "--take-ownership", "--force-conflicts")
        with operator(control_plane, helm, values, tmp_path) as log:
            until(lambda: read("/readyz", control_plane), f"ready; its log: {log.read_text()[-800:]}")
            control_plane.apply({**SMALLEST, "metadata": {"name": "smollm2"}}, namespace="served")
            until(lambda: children(control_plane), "the reader Job")
            until(lambda: has_certificate(control_plane), "the webhook's certificate")
            metrics = read("/metrics", control_plane) or ""
            assert "Forbidden" not in metrics, log.read_text()[-2000:]
            assert "forbidden" not in log.read_text()
    finally:
        control_plane.run("helm", "uninstall", "decodepool", "--namespace", "system", "--ignore-not-found")
        control_plane.kubectl("delete", "namespace", "served", "system", "--ignore-not-found", "--timeout=90s")
        control_plane.kubectl("delete", "crd", NAME, "--ignore-not-found")


def children(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.items("jobs", "served", "decodepool.dev/pool=smollm2")


def has_certificate(cluster: Cluster) -> bool:
    (hook,) = cluster.get("mutatingwebhookconfiguration", "decodepool-sidecar")["webhooks"]
    secret = cluster.get("secret", "decodepool-operator-cert", "system")
    return bool(hook["clientConfig"].get("caBundle")) and "tls.crt" in secret.get("data", {})
