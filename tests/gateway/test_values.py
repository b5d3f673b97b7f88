"""The gateway's pure parts: whole events, headers, EndpointSlices, sums."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from decodepool_gateway.discovery.endpoints import workers_of
from decodepool_gateway.event_blocks import EventBlocks
from decodepool_gateway.headers import to_client, to_worker
from decodepool_gateway.whole_pool import summed
from decodepool_gateway.workers import Worker, WorkerAddress
from decodepool_sizing.session_ids import worker_tag
from hypothesis import given
from hypothesis import strategies as st

STREAM = b'event: token\nid: 5\ndata: {"text":"\\n\\n"}\n\n: keep-alive\n\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_passed_on_whole_however_they_come(cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(STREAM)})
    blocks = EventBlocks()
    out = [blocks.feed(STREAM[a:b]) for a, b in pairwise(places)]
    assert b"".join(out) == STREAM
    assert all(piece.endswith(b"\n\n") for piece in out if piece)


@pytest.mark.parametrize("end", range(len(STREAM)))
def test_half_an_event_is_never_passed_on(end: int) -> None:
    passed = EventBlocks().feed(STREAM[:end])
    assert STREAM.startswith(passed)
    assert not passed or passed.endswith(b"\n\n")


def test_headers_of_one_hop_stay_there() -> None:
    headers = {
        "Host": "pool",
        "Connection": "keep-alive, X-Mine",
        "x-mine": "1",
        "TE": "trailers",
        "Transfer-Encoding": "chunked",
        "Accept-Encoding": "gzip",
        "Content-Length": "3",
        "Authorization": "Bearer k",
        "Last-Event-ID": "7",
        "X-Theirs": "2",
    }
    assert dict(to_worker(headers)) == {"Authorization": "Bearer k", "Last-Event-ID": "7", "X-Theirs": "2"}
    answer = {"Content-Length": "3", "Date": "now", "Server": "s", "Keep-Alive": "5", "Retry-After": "1"}
    assert dict(to_client(answer)) == {"Retry-After": "1"}


def endpoint(name: str, /, address: str = "10.0.0.7", **conditions: Any) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": name, "uid": f"uid-{name}"},
    }


def piece(*endpoints: dict[str, Any], ports: Any = ({"name": "http", "port": 8000},)) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "ports": ports and list(ports), "endpoints": list(endpoints)}


def known(*, ready: bool = True, draining: bool = False, url: str = "http://10.0.0.7:8000") -> WorkerAddress:
    return WorkerAddress("uid-w", "w", url, ready=ready, draining=draining)


LEAVING: Any = {"ready": False, "serving": True, "terminating": True}


@pytest.mark.parametrize(
    ("slices", "workers"),
    [
        ([piece(endpoint("w", ready=True, serving=True, terminating=False))], [known()]),
        ([piece(endpoint("w"))], [known()]),  # absent means ready
        ([piece(endpoint("w", ready=False))], [known(ready=False)]),
        ([piece(endpoint("w", **LEAVING))], [known(ready=False, draining=True)]),
        ([piece(endpoint("w", "fd00::7", ready=True))], [known(url="http://[fd00::7]:8000")]),
        ([piece(endpoint("w", ready=False)), piece(endpoint("w", ready=True))], [known()]),
        ([piece(endpoint("w", ready=True)), piece(endpoint("w", ready=False))], [known()]),
        ([piece(endpoint("w"), ports=None)], []),
        ([piece(endpoint("w"), ports=[{"name": "metrics", "port": 1}])], []),
        ([piece({"addresses": ["10.0.0.7"], "conditions": {"ready": True}})], []),  # no pod
        ([piece({**endpoint("w"), "addresses": []})], []),
        ([{"metadata": {"name": "s"}, "endpoints": None, "ports": None}], []),
        ([], []),
    ],
)
def test_slices_become_workers(slices: list[dict[str, Any]], workers: list[WorkerAddress]) -> None:
    assert workers_of(slices) == workers


def test_workers_are_in_the_order_of_their_names() -> None:
    slices = [piece(endpoint("b", "10.0.0.2")), piece(endpoint("c", "10.0.0.3"), endpoint("a", "10.0.0.1"))]
    assert [worker.name for worker in workers_of(slices)] == ["a", "b", "c"]


def reporting(name: str, *, ready: bool = True, **differs: Any) -> Worker:
    report = {
        "sessions": {"capacity": 4, "active": 1, "free": 3},
        "context_tokens": 64,
        "kv_type": "f16",
        "limited_by": "memory",
        "system_fingerprint": "fp",
        "planned": {"weight_bytes": 10, "session_bytes": 5, "cache_bytes": 1},
        "measured": {"weight_bytes": 11, "session_bytes": None, "cache_bytes": None},
        "worker_tag": worker_tag(name),
    }
    return Worker(WorkerAddress(name, name, f"http://{name}", ready=ready), {**report, **differs})


def test_capacity_is_the_sum_and_what_differs_is_null() -> None:
    told = summed([reporting("a"), reporting("b", system_fingerprint="other")])
    assert told == {
        "sessions": {"capacity": 8, "active": 2, "free": 6},
        "context_tokens": 64,
        "kv_type": "f16",
        "limited_by": "memory",
        "system_fingerprint": None,
        "worker_tag": None,
        "planned": {"weight_bytes": 20, "session_bytes": 5, "cache_bytes": 2},
        "measured": {"weight_bytes": 22, "session_bytes": None, "cache_bytes": None},
    }


def test_a_session_takes_what_it_takes_on_one_worker_or_null_where_they_differ() -> None:
    other = {"weight_bytes": 10, "session_bytes": 6, "cache_bytes": 1}
    assert summed([reporting("a"), reporting("b", planned=other)])["planned"]["session_bytes"] is None


@pytest.mark.parametrize(
    ("tag", "admits"), [(worker_tag("a"), True), (worker_tag("b"), False), (None, False)], ids=["own", "other", "none"]
)
def test_a_worker_whose_sessions_would_not_be_found_takes_none(tag: str | None, admits: bool) -> None:
    assert reporting("a", worker_tag=tag).admits is admits


def test_a_worker_of_a_release_that_does_not_tell_its_tag_takes_sessions() -> None:
    older = reporting("a")
    assert older.report is not None
    report = {name: value for name, value in older.report.items() if name != "worker_tag"}
    older.reported(report, asked_at=0.0)
    assert older.admits


def test_places_of_a_worker_that_takes_no_sessions_are_not_free() -> None:
    told = summed([reporting("a"), reporting("b", ready=False)])
    assert told["sessions"] == {"capacity": 5, "active": 2, "free": 3}
