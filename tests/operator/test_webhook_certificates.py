from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.webhook.certificates import (
    AUTHORITY_DAYS,
    AUTHORITY_RENEW_DAYS,
    SERVER_DAYS,
    SERVER_RENEW_DAYS,
    Certificates,
    renewed,
)
from decodepool_operator.webhook.injection import Denied, Injected
from decodepool_operator.webhook.keeper import Keeper, Place, trusting
from decodepool_operator.webhook.server import WebhookServer, answer

from tests.operator.fake_api import FakeApi

HOST = "decodepool-webhook.system.svc"
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def made() -> Certificates:
    return renewed(None, HOST, NOW)


def test_good_certificates_are_kept(made: Certificates) -> None:
    assert renewed(made, HOST, NOW + timedelta(days=SERVER_DAYS - SERVER_RENEW_DAYS - 1)) == made


def test_a_server_certificate_is_renewed_weeks_before_its_end_under_the_same_authority(made: Certificates) -> None:
    later = renewed(made, HOST, NOW + timedelta(days=SERVER_DAYS - SERVER_RENEW_DAYS + 1))
    assert later.authority == made.authority
    assert later.server != made.server


def test_an_authority_is_renewed_a_year_before_its_end(made: Certificates) -> None:
    later = renewed(made, HOST, NOW + timedelta(days=AUTHORITY_DAYS - AUTHORITY_RENEW_DAYS + 1))
    assert later.authority != made.authority


def test_another_host_needs_another_certificate(made: Certificates) -> None:
    assert renewed(made, "elsewhere.svc", NOW).server != made.server


def test_a_certificate_of_another_authority_is_replaced(made: Certificates) -> None:
    other = renewed(None, HOST, NOW)
    mixed = replace(made, server=other.server, server_key=other.server_key)
    assert renewed(mixed, HOST, NOW).server not in (other.server, made.server)


def test_a_secret_keeps_certificates_and_anything_else_is_none(made: Certificates) -> None:
    data = made.to_secret_data()
    assert Certificates.from_secret_data(data) == made
    other = base64.b64encode(b"no key").decode()
    for broken in ({}, {**data, "tls.crt": "!"}, {**data, "tls.key": other}, {**data, "path": other}):
        assert Certificates.from_secret_data(broken) is None


def keeper(api: FakeApi) -> Keeper:
    return Keeper(api, Place("system", "cert", "decodepool-sidecar"), HOST)  # type: ignore[arg-type]


def with_the_charts_secret() -> FakeApi:
    api = FakeApi()
    api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": "system"}})
    return api


def test_the_empty_secret_of_the_chart_is_filled_once_and_found_again() -> None:
    api = with_the_charts_secret()
    first = keeper(api).certificates(NOW)
    assert Certificates.from_secret_data(api.of("Secret")[0]["data"]) == first
    assert keeper(api).certificates(NOW) == first
    assert [call[0] for call in api.calls] == ["get", "replace", "get"]


def test_a_secret_that_was_deleted_is_made_again() -> None:
    """By applying it: only then does an API server hold the right to create against the name."""
    api = FakeApi()
    made = keeper(api).certificates(NOW)
    assert Certificates.from_secret_data(api.of("Secret")[0]["data"]) == made
    assert [call[0] for call in api.calls] == ["get", "apply"]


def test_a_secret_that_somebody_wrote_meanwhile_is_not_overwritten() -> None:
    api = with_the_charts_secret()
    api.refuse("replace", "cert", ApiFault(Refusal.STALE, "the object has been modified"))
    with pytest.raises(ApiFault):
        keeper(api).certificates(NOW)
    assert "data" not in api.of("Secret")[0]


def test_the_api_server_is_told_of_the_authority_once(made: Certificates) -> None:
    api = FakeApi()
    webhooks = [{"name": "a", "clientConfig": {"service": {}}}, {"name": "b", "clientConfig": {"caBundle": "old"}}]
    api.put(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "decodepool-sidecar"},
            "webhooks": webhooks,
        }
    )
    assert keeper(api).trust(made)
    assert not keeper(api).trust(made)
    [found] = api.of("MutatingWebhookConfiguration")
    bundle = base64.b64encode(made.authority).decode()
    at_its_path = {"caBundle": bundle, "service": {"path": made.path.decode()}}
    assert [each["clientConfig"] for each in found["webhooks"]] == [at_its_path, {"caBundle": bundle}]


def test_a_chart_without_the_webhook_is_left_without(made: Certificates) -> None:
    assert not keeper(FakeApi()).trust(made)
    assert trusting({}, made) == []


@pytest.mark.parametrize(
    ("outcome", "allowed", "patched"),
    [
        (Injected(()), True, False),
        (Injected(({"op": "add", "path": "/spec/x", "value": 1},)), True, True),
        (Denied("no"), False, False),
    ],
    ids=["nothing to do", "a patch", "denied"],
)
def test_a_review_is_answered(outcome: Injected | Denied, allowed: bool, patched: bool) -> None:
    response = answer("u", outcome)["response"]
    assert (response["uid"], response["allowed"], "patch" in response) == ("u", allowed, patched)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def asked(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    async with session.post(url, data=body if isinstance(body, str) else json.dumps(body)) as got:
        return got.status, await got.json(content_type=None) if got.status == 200 else await got.text()


async def listening(port: int) -> None:
    for _ in range(500):
        await asyncio.sleep(0.01)
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError("the server does not listen")


class OneHost(aiohttp.abc.AbstractResolver):
    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        return


REVIEW = {"request": {"uid": "u", "namespace": "team", "object": {"x": 1}}}
NONSENSE: tuple[Any, ...] = ("{", "[]", {}, {"request": {"uid": "u"}}, {"request": None})


async def trusting_session(certificates: Certificates) -> aiohttp.ClientSession:
    trust = ssl.create_default_context(cadata=certificates.authority.decode())
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, resolver=OneHost()))


def test_the_server_is_trusted_by_its_authority_and_survives_nonsense() -> None:
    async def main() -> None:
        api, port, seen = with_the_charts_secret(), free_port(), []

        def injects(namespace: str, pod: Any) -> Injected:
            seen.append((namespace, pod))
            return Injected(())

        server = WebhookServer(keeper(api), injects, port, ThreadPoolExecutor(1))
        task = asyncio.create_task(server.run())
        await listening(port)
        known = server._loaded
        assert known is not None
        url = f"https://{HOST}:{port}{known.path.decode()}"
        async with await trusting_session(known) as session:
            for nonsense in NONSENSE:
                assert (await asked(session, url, nonsense))[0] == 400
            status, review = await asked(session, f"{url}?timeout=5s", REVIEW)
        assert (status, review["response"]) == (200, {"uid": "u", "allowed": True})
        assert seen == [("team", {"x": 1})]
        task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/", "/inject", "/inject/", "/inject/" + "0" * 32, "/inject/%FF", "//"])
def test_whoever_was_not_told_the_path_learns_of_no_pool(path: str) -> None:
    """Any pod may connect; what is answered there has a pool's model URL, environment and Secrets' names in it."""

    async def main() -> None:
        def injects(namespace: str, pod: Any) -> Injected:
            raise AssertionError("nobody looks at a pool for a stranger")

        port = free_port()
        server = WebhookServer(keeper(with_the_charts_secret()), injects, port, ThreadPoolExecutor(1))
        task = asyncio.create_task(server.run())
        await listening(port)
        assert server._loaded is not None
        async with await trusting_session(server._loaded) as session:
            assert await asked(session, f"https://{HOST}:{port}{path}", REVIEW) == (404, "404: Not Found")
        task.cancel()

    asyncio.run(main())


def test_each_installation_has_a_path_of_its_own_that_stays(made: Certificates) -> None:
    assert renewed(None, HOST, NOW).path != made.path
    for days in (SERVER_DAYS, AUTHORITY_DAYS):
        assert renewed(made, HOST, NOW + timedelta(days=days)).path == made.path
