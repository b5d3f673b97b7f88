from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
from decodepool_operator.webhook.keeper import Keeper, Place, bundle_patch
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
    for broken in ({}, {**data, "tls.crt": "!"}, {**data, "tls.key": base64.b64encode(b"no key").decode()}):
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


def test_a_secret_that_is_gone_is_told_of_and_not_made() -> None:
    """There is no right to make any: what would be refused for ever says what to do instead."""
    api = FakeApi()
    with pytest.raises(ApiFault, match="there is no Secret cert: `helm upgrade` makes it again"):
        keeper(api).certificates(NOW)
    assert [call[0] for call in api.calls] == ["get"]


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
    assert {each["clientConfig"]["caBundle"] for each in found["webhooks"]} == {
        base64.b64encode(made.authority).decode()
    }


def test_a_chart_without_the_webhook_is_left_without(made: Certificates) -> None:
    assert not keeper(FakeApi()).trust(made)
    assert bundle_patch({}, "x") == []


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


async def asked(session: aiohttp.ClientSession, port: int, body: Any) -> tuple[int, Any]:
    async with session.post(
        f"https://{HOST}:{port}/inject", data=body if isinstance(body, str) else json.dumps(body)
    ) as got:
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


def test_the_server_is_trusted_by_its_authority_and_survives_nonsense(tmp_path: Path) -> None:
    async def main() -> None:
        api, port, seen = with_the_charts_secret(), free_port(), []

        def injects(namespace: str, pod: Any) -> Injected:
            seen.append((namespace, pod))
            return Injected(())

        server = WebhookServer(keeper(api), injects, port, ThreadPoolExecutor(1))
        task = asyncio.create_task(server.run())
        await listening(port)
        assert server._loaded is not None
        trust = ssl.create_default_context(cadata=server._loaded.authority.decode())
        connector = aiohttp.TCPConnector(ssl=trust, resolver=OneHost())
        async with aiohttp.ClientSession(connector=connector) as session:
            for nonsense in ("{", "[]", {}, {"request": {"uid": "u"}}, {"request": None}):
                assert (await asked(session, port, nonsense))[0] == 400
            status, review = await asked(
                session, port, {"request": {"uid": "u", "namespace": "team", "object": {"x": 1}}}
            )
        assert (status, review["response"]) == (200, {"uid": "u", "allowed": True})
        assert seen == [("team", {"x": 1})]
        task.cancel()

    asyncio.run(main())
