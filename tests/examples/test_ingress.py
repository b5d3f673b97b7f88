"""What the example lets in is what asks for a key, and nothing that a proxy does by default is in its way."""

from __future__ import annotations

import re
from typing import Any

import pytest
from decodepool_gateway.bodies import MAX_BODY_BYTES
from decodepool_gateway.routes import ROUTES
from decodepool_operator.planner.objects.network import client_service
from decodepool_operator.planner.pools import read_pool
from decodepool_web.routes import Route
from decodepool_worker.serving.sse import KEEP_ALIVE_SECONDS

from tests.examples.manifests import EXAMPLES, objects, pools

SECRET, POOL, INGRESS = objects(EXAMPLES / "ingress.yaml")
(RULE,) = INGRESS["spec"]["rules"]
PATHS = RULE["http"]["paths"]
ANNOTATIONS = {name.rpartition("/")[2]: value for name, value in INGRESS["metadata"]["annotations"].items()}


def is_let_in(path: str) -> bool:
    """As Kubernetes has it: a prefix is of whole parts of a path."""
    found = [each for each in PATHS if path == each["path"]]
    return bool(found) or any(
        path.startswith(each["path"].rstrip("/") + "/") for each in PATHS if each["pathType"] == "Prefix"
    )


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_what_asks_for_a_key_is_let_in_and_what_does_not_is_kept_inside(route: Route) -> None:
    assert is_let_in(route.path) is not route.public


def test_it_leads_to_the_pools_own_service() -> None:
    (pool,) = pools(EXAMPLES / "ingress.yaml")
    raw: dict[str, Any] = {**pool, "metadata": {**pool["metadata"], "namespace": "default", "uid": "u"}}
    service = client_service(read_pool(raw))
    ports = {port["name"] for port in service["spec"]["ports"]}
    for each in PATHS:
        assert each["backend"]["service"]["name"] == service["metadata"]["name"]
        assert each["backend"]["service"]["port"]["name"] in ports


def test_its_pool_asks_for_a_key_and_its_host_for_tls() -> None:
    assert POOL["spec"]["auth"]["secretRef"]["name"] == SECRET["metadata"]["name"]
    (tls,) = INGRESS["spec"]["tls"]
    assert tls["hosts"] == [RULE["host"]]


def test_a_request_may_be_as_large_and_as_long_as_the_gateway_lets_it() -> None:
    megabytes = re.fullmatch(r"(\d+)m", ANNOTATIONS["proxy-body-size"])
    assert megabytes
    assert int(megabytes[1]) << 20 == MAX_BODY_BYTES
    assert int(ANNOTATIONS["proxy-read-timeout"]) > 10 * KEEP_ALIVE_SECONDS
    assert ANNOTATIONS["proxy-buffering"] == "off"
