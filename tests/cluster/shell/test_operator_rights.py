"""The operator under the rights that the chart gives it, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from decodepool_cluster.linux import ClusterFault
from decodepool_operator.api.kinds import LEASES, SECRETS

from tests.cluster.shell.conftest import Operators
from tests.cluster.shell.plane import Plane, free_port, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CHART = Path(__file__).parents[3] / "charts" / "decodepool"
OWN, LEASE = "decodepool-system", "decodepool-operator"
ACCOUNT = f"system:serviceaccount:{OWN}:{LEASE}"
WITHOUT_PODS = ("Deployment", "Service", "Pod", "MutatingWebhookConfiguration", "CustomResourceDefinition")


def install_rights(plane: Plane, *values: str) -> None:
    """Install what the chart renders, but for the operator's own pod and what points at it."""
    rendered = plane.cluster.run("helm", "template", "decodepool", str(CHART), "--namespace", OWN, *values)
    objects = [each for each in yaml.safe_load_all(rendered) if each and each["kind"] not in WITHOUT_PODS]
    if OWN not in plane.namespaces():
        plane.cluster.kubectl("create", "namespace", OWN)
    plane.cluster.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(objects))


def remove_rights(plane: Plane) -> None:
    name = "decodepool-operator"
    plane.cluster.kubectl("delete", "clusterrole,clusterrolebinding", name, "--ignore-not-found")
    plane.cluster.kubectl("delete", "namespace", OWN, "--ignore-not-found", "--timeout=60s")


def kubeconfig_of_operator(plane: Plane, folder: Path) -> Path:
    token = plane.cluster.kubectl("create", "token", "decodepool-operator", "-n", OWN).strip()
    known = yaml.safe_load(Path(f"{plane.cluster.home}/admin.kubeconfig").read_text())
    known["users"][0]["user"] = {"token": token}
    written = folder / "operator.kubeconfig"
    written.write_text(yaml.safe_dump(known))
    return written


def test_what_is_deleted_by_hand_comes_back_by_rights_for_these_names_alone(
    plane: Plane, operators: Operators, tmp_path: Path
) -> None:
    install_rights(plane)
    try:
        given = {
            "NAMESPACES": "",
            "OPERATOR_NAMESPACE": OWN,
            "WEBHOOK_SERVICE": LEASE,
            "WEBHOOK_PORT": str(free_port()),
        }
        operator = operators(kubeconfig_of_operator(plane, tmp_path), LEASE=LEASE, **given)
        plane.delete(SECRETS, OWN, f"{LEASE}-cert")
        operator.start()
        until(lambda: plane.api.get(SECRETS, OWN, f"{LEASE}-cert")["data"]["path"], "a certificate in a new Secret")
        plane.delete(LEASES, OWN, LEASE)
        until(lambda: plane.api.get(LEASES, OWN, LEASE)["spec"]["holderIdentity"], "a new heartbeat")
        assert "orbidden" not in operator.log.read_text()
        assert operator.probe("/healthz") == 200
        for other in ("secrets", "secrets/other", "leases", "leases/other"):
            with pytest.raises(ClusterFault):
                plane.cluster.kubectl("auth", "can-i", "create", other, "-n", OWN, f"--as={ACCOUNT}", "-q")
    finally:
        remove_rights(plane)


MODES = {"the whole cluster": False, "one namespace": True}


@pytest.mark.parametrize("namespaced", MODES.values(), ids=MODES)
def test_the_charts_rights_are_enough(
    plane: Plane, space: str, model: str, operators: Operators, tmp_path: Path, namespaced: bool
) -> None:
    served = space if namespaced else ""
    install_rights(plane, *([f"--set=watchNamespaces={{{space}}}", "--set=rbac.readNodes=false"] if namespaced else []))
    try:
        operator = operators(kubeconfig_of_operator(plane, tmp_path), NAMESPACES=served, OPERATOR_NAMESPACE=OWN)
        operator.start()
        plane.make(space, "chat", model, sessionsPerWorker=4, replicas=2)
        until(lambda: plane.follows(space, "chat", 4), "the pool to be planned")
        plane.set_spec(space, "chat", sessionsPerWorker=6)
        until(lambda: plane.follows(space, "chat", 6), "the change to be followed")
        degraded = plane.condition(space, "chat", "Degraded")
        assert degraded["reason"] != "ApplyFailed", degraded["message"]
        assert "orbidden" not in operator.log.read_text()
        assert not any((errors := operator.metrics("decodepool_operator_errors_total")).values()), errors
        assert operator.probe("/healthz") == 200
    finally:
        remove_rights(plane)
