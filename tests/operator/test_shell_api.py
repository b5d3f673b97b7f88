"""The client of the API server against a server of our own: what goes over the wire, and what comes of bad answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from decodepool_operator.api import client as module
from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import PODS, POOLS
from decodepool_operator.definition.crd import schema
from decodepool_operator.shell.installed import crd_notice, has_pod_monitors, missing_in
from kubernetes import client

from tests.operator.pools import pool


class Server:
    """Answers with what it is given, in order; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, dict[str, list[str]], str, Any]] = []
        self.url = ""

    def api(self) -> Api:
        configuration = client.Configuration(host=self.url)
        configuration.retries = False
        return Api(client.ApiClient(configuration))


@contextmanager
def serving() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent = json.loads(body) if body else None
            kind = self.headers.get("Content-Type") or ""
            state.asked.append((self.command, split.path, parse_qs(split.query), kind, sent))
            status, answer = state.answers.pop(0)
            text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def test_an_apply_is_server_side_under_the_operators_name_and_takes_nothing_by_force(server: Server) -> None:
    server.answers = [(200, {"kind": "DecodePool"}), (201, {"kind": "DecodePool"})]
    server.api().apply(pool())
    server.api().apply(pool(), force=True)
    path = "/apis/decodepool.dev/v1alpha1/namespaces/team/decodepools/chat"
    for (verb, asked, query, content_type, body), force in zip(server.asked, ("false", "true"), strict=True):
        assert (verb, asked, content_type) == ("PATCH", path, "application/apply-patch+yaml")
        assert query == {"fieldManager": ["decodepool-operator"], "force": [force]}
        assert body == pool()


def test_a_deletion_is_of_one_object_and_not_of_its_name(server: Server) -> None:
    server.answers = [(200, {})]
    server.api().delete(PODS, "team", "p", "uid-1")
    _, path, _, _, body = server.asked[0]
    assert path == "/api/v1/namespaces/team/pods/p"
    assert body["preconditions"] == {"uid": "uid-1"}
    assert body["propagationPolicy"] == "Background"


@pytest.mark.parametrize(("status", "raises"), [(404, False), (409, False), (403, True), (500, True)])
def test_what_is_gone_or_another_by_now_is_deleted_enough(server: Server, status: int, raises: bool) -> None:
    server.answers = [(status, {"message": "no"})]
    if raises:
        with pytest.raises(ApiFault):
            server.api().delete(PODS, "team", "p", "uid-1")
    else:
        server.api().delete(PODS, "team", "p", "uid-1")


def test_a_long_list_comes_page_by_page_and_without_bodies(server: Server) -> None:
    pages = [
        {"items": [{"metadata": {"name": f"p{n}"}}], "metadata": {"continue": token}} for n, token in enumerate("ab")
    ]
    server.answers = [(200, pages[0]), (200, {**pages[1], "metadata": {}})]
    assert [each["name"] for each in server.api().list_metadata(PODS, None)] == ["p0", "p1"]
    assert [query.get("continue") for _, _, query, _, _ in server.asked] == [None, ["a"]]
    assert all(query["labelSelector"] == ["decodepool.dev/pool"] for _, _, query, _, _ in server.asked)


@pytest.mark.parametrize("answer", [b"<html>", b"[", b'"text'], ids=["a page", "half an array", "half a text"])
def test_an_answer_that_is_no_object_is_a_server_that_is_away(server: Server, answer: bytes) -> None:
    server.answers = [(200, answer)]
    with pytest.raises(ApiFault) as told:
        server.api().get(POOLS, "team", "chat")
    assert told.value.refusal is Refusal.UNAVAILABLE


def test_a_server_that_does_not_answer_is_given_up_soon(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", (0.2, 0.2))
    released = threading.Event()
    server.answers = [(200, {})]
    original = server.answers.pop

    class Slow(list[Any]):
        def pop(self, *_: Any) -> Any:
            released.wait(5)
            return original(0)

    server.answers = Slow(server.answers)
    with pytest.raises(ApiFault) as told:
        server.api().get(POOLS, "team", "chat")
    released.set()
    assert told.value.refusal is Refusal.UNAVAILABLE


def openapi(**changes: Any) -> dict[str, Any]:
    kinds = [{"group": "decodepool.dev", "kind": "DecodePool", "version": "v1alpha1"}]
    pools = {**json.loads(json.dumps(schema())), "x-kubernetes-group-version-kind": kinds}
    pools["properties"]["metadata"] = {"$ref": "#/components/schemas/ObjectMeta"}
    for path in changes.get("without", ()):
        target = pools
        *parents, last = path.split(".")
        for parent in parents:
            target = target["properties"][parent]
        del target["properties"][last]
    return {"components": {"schemas": {"dev.decodepool.v1alpha1.DecodePool": pools, "ObjectMeta": {}}}}


def test_a_crd_as_new_as_the_operator_lacks_nothing() -> None:
    assert missing_in(openapi()) == []


def test_fields_that_a_crd_lacks_are_named() -> None:
    assert missing_in(openapi(without=["spec.suspend", "status.workers"])) == ["spec.suspend", "status.workers"]


def test_a_document_without_pools_tells_nothing() -> None:
    assert missing_in({}) == []
    assert missing_in({"components": {"schemas": {"Pod": {}}}}) == []


def test_the_notice_is_one_line_with_the_command_that_helps(server: Server) -> None:
    server.answers = [(200, openapi(without=["spec.suspend"]))]
    notice = crd_notice(server.api())
    assert notice is not None
    assert "spec.suspend" in notice
    assert "kubectl apply --server-side" in notice
    assert "\n" not in notice


def test_pod_monitors_are_made_only_where_they_are_served(server: Server) -> None:
    served = {"resources": [{"name": "podmonitors"}]}
    server.answers = [(404, {"message": "not found"}), (200, {"resources": []}), (200, served)]
    assert [has_pod_monitors(server.api()) for _ in range(3)] == [False, False, True]
