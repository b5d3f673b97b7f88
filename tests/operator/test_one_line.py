"""Whatever comes from outside, what is told of a pool is one printable line: conditions, Events, the whole status."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from decodepool_operator.names import COMPONENT_LABEL, MANAGER, MANAGER_LABEL, NAME_LABEL, POOL_LABEL
from decodepool_operator.planner.conditions import Finding
from decodepool_operator.planner.plan import plan, untouched
from decodepool_operator.planner.state import Event, Object, Plan, Resolving, Unresolved
from decodepool_operator.texts import steady
from decodepool_sizing.errors import BadModelFile, one_line, told_url

from tests.operator.pools import cluster, facts, host_path_pool, observed, pool, resolved
from tests.operator.simulation import START

HOSTILE = {
    "lines": "a\nb\r\nc\x0bd\x0ce\x85f\u2028g\u2029h",
    "escapes": "\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b2J",
    "nothing": "\x00\x7f\xad\u200b\ufeff",
    "directions": "\u202etxt.exe\u2066",
    "half a pair": "\ud800",
    "of nobody": "\ue000\U000e0041\U0010ffff",
    "spaces": "\xa0\u3000\t",
}


def is_one_line(text: str) -> bool:
    return text.isprintable() and len(text.splitlines()) <= 1


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in (*value.keys(), *value.values()):
            yield from strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings(each)


def told(found: Plan) -> list[str]:
    return [*strings(found.status), *(part for event in found.events for part in (event.reason, event.message))]


def test_any_characters_become_one_printable_line() -> None:
    draw = random.Random(10)
    for _ in range(2000):
        text = "".join(chr(draw.choice([draw.randrange(0x100), draw.randrange(0x110000)])) for _ in range(20))
        lines = [one_line(text), told_url(f"http://{text}"), told_url(text), steady(text, "chat")]
        lines += [str(BadModelFile(text)), Finding("Ready", "False", text, text).reason]
        lines += [Finding("Ready", "False", text, text).message, Event("Normal", text, text).message]
        assert all(is_one_line(each) for each in lines), ascii(text)
        assert one_line(one_line(text)) == one_line(text)
        "".join(lines).encode()


def test_what_is_printable_stays_as_it_is() -> None:
    text = 'tensor größe: 模型  "x", 3 % … ü'
    assert one_line(text) == text
    assert one_line("a\n\tb\x1b[0m") == "a b\\x1b[0m"


def pod_with(status: Object) -> Object:
    labels = {
        NAME_LABEL: "decodepool",
        MANAGER_LABEL: MANAGER,
        POOL_LABEL: "chat",
        COMPONENT_LABEL: "worker",
    }
    owner = {"kind": "ReplicaSet", "name": "chat-worker-5d8f", "controller": True}
    metadata = {"name": "chat-worker-5d8f-x2vbn", "uid": "u", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "status": {"phase": "Pending", "conditions": [], **status}}


def waits(text: str) -> Object:
    waiting = {"reason": f"Create{text}", "message": text}
    return {"containerStatuses": [{"name": text, "image": text, "ready": False, "state": {"waiting": waiting}}]}


def ends(text: str) -> Object:
    ended = {"terminated": {"exitCode": 1, "reason": text, "message": f"decodepool: {text}"}}
    return {"containerStatuses": [{"name": text, "ready": False, "state": ended}]}


def pulls(text: str) -> Object:
    waiting = {"reason": "ErrImagePull", "message": f'image "{text}": failed: {text}'}
    return {"containerStatuses": [{"name": "x", "image": text, "ready": False, "state": {"waiting": waiting}}]}


PODS: dict[str, Callable[[str], Object]] = {
    "waits": waits,
    "ends": ends,
    "pulls": pulls,
    "fails": lambda text: {"phase": "Failed", "reason": f"Evicted{text}", "message": text},
    "unscheduled": lambda text: {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": text or "x", "message": text}]
    },
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("state", PODS)
def test_what_a_pods_status_says(state: str, text: str) -> None:
    raw = pool()
    found = plan(raw, observed(raw, pods=(pod_with(PODS[state](text)),)), START)
    assert [each for each in told(found) if not is_one_line(each)] == []


URLS = {
    "as it is": lambda text: f"http://models.example/{text}.gguf",
    "quoted": lambda text: f"http://models.example/{quote(text, errors='surrogatepass')}.gguf",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("form", URLS)
def test_what_a_url_or_a_path_says(form: str, text: str) -> None:
    http = pool(model={"source": {"http": {"url": URLS[form](text)}}})
    path = host_path_pool(model={"source": {"hostPath": {"path": f"/srv/{text}.gguf"}}})
    for raw in (http, path):
        key = resolved(raw).source
        for resolution in (
            resolved(raw),
            Resolving(text),
            Unresolved("NotFound", text, key),
            Unresolved(text, "", key),
        ):
            found = plan(raw, observed(raw, resolution=resolution), START)
            assert [each for each in told(found) if not is_one_line(each)] == []


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_what_the_api_server_an_engine_and_a_fault_say(text: str) -> None:
    here = cluster(pool())
    here.settle()
    refused = {"type": "ReplicaFailure", "status": "True", "message": text}
    for child in here.objects.values():
        child.setdefault("status", {})["conditions"] = [refused]
    here.pods.clear()
    seen = here.observed()
    unknown = replace(facts(), refusals={"cpu": (f"tensor {text}",), "cuda": ()})
    raw = pool()
    plans = [
        plan(here.pool, seen, START),
        plan(here.pool, replace(seen, faults=(text,)), START),
        plan(raw, observed(raw, resolution=resolved(raw, unknown)), START),
        plan({**raw, "spec": {**raw["spec"], text: 1}}, observed(raw), START),
        untouched(raw, "PlannerFailed", text, START),
    ]
    assert [each for found in plans for each in told(found) if not is_one_line(each)] == []
