"""What the API server's answers mean. The bodies are a real server's, 1.36."""

from __future__ import annotations

import json
from typing import Any

import pytest
from decodepool_operator.api.faults import Refusal, fault_of
from kubernetes.client.exceptions import ApiException


def answered(
    code: int, message: str, reason: str = "", causes: list[dict[str, Any]] | None = None, kind: str = ""
) -> ApiException:
    error = ApiException(status=code, reason=reason)
    details = {"kind": kind, "causes": causes or []}
    body = {"kind": "Status", "message": message, "reason": reason, "details": details}
    error.body = json.dumps(body)
    return error


CONFLICT = [
    {"reason": "FieldManagerConflict", "message": 'conflict with "kubectl" using apps/v1', "field": ".spec.replicas"}
]
UNTYPED = "failed to create typed patch object (team/chat-worker; apps/v1, Kind=Deployment)"
TERMINATING = [
    {"reason": "NamespaceTerminating", "message": "namespace x is being terminated", "field": "metadata.namespace"}
]
CASES = {
    "gone": (answered(404, 'pods "p" not found', "NotFound"), Refusal.NOT_FOUND),
    "somebody holds the field": (answered(409, "Apply failed", "Conflict", CONFLICT), Refusal.FIELD_CONFLICT),
    "changed meanwhile": (answered(409, "the object has been modified", "Conflict"), Refusal.STALE),
    "made already": (answered(409, 'events "e" already exists', "AlreadyExists"), Refusal.STALE),
    "quota": (answered(403, 'pods "p" is forbidden: exceeded quota: gpus', "Forbidden"), Refusal.QUOTA),
    "namespace ends": (answered(403, "is forbidden", "Forbidden", TERMINATING), Refusal.TERMINATING),
    "namespace has ended": (
        answered(404, 'namespaces "x" not found', "NotFound", kind="namespaces"),
        Refusal.TERMINATING,
    ),
    "no right": (answered(403, 'User "x" cannot patch', "Forbidden"), Refusal.FORBIDDEN),
    "invalid": (answered(422, "spec.replicas: Invalid value", "Invalid"), Refusal.INVALID),
    "no such field": (
        answered(500, f"{UNTYPED}: .spec.template.spec.bogus: field not declared in schema"),
        Refusal.INVALID,
    ),
    "too many requests": (answered(429, "slow down", "TooManyRequests"), Refusal.UNAVAILABLE),
    "etcd is away": (answered(500, "etcdserver: request timed out", "InternalError"), Refusal.UNAVAILABLE),
    "no answer": (OSError("connection refused"), Refusal.UNAVAILABLE),
    "half an answer": (ValueError("Expecting value: line 1"), Refusal.UNAVAILABLE),
}


@pytest.mark.parametrize(("error", "refusal"), CASES.values(), ids=CASES)
def test_each_refusal_is_known_for_what_it_is(error: Exception, refusal: Refusal) -> None:
    assert fault_of(error).refusal is refusal


def test_a_conflict_names_the_field_and_who_holds_it() -> None:
    assert fault_of(CASES["somebody holds the field"][0]).fields == (
        '.spec.replicas: conflict with "kubectl" using apps/v1',
    )


def test_what_is_wrong_with_several_fields_is_told_whole() -> None:
    found = fault_of(answered(500, f"{UNTYPED}: errors:\n  .a: duplicate entries\n  .b: field not declared in schema"))
    assert found.refusal is Refusal.INVALID
    assert found.message == f"{UNTYPED}: errors: .a: duplicate entries .b: field not declared in schema"


def test_a_refusal_is_one_line() -> None:
    assert "\n" not in fault_of(answered(403, "one\ntwo", "Forbidden")).message
    assert "\n" not in fault_of(OSError("one\ntwo")).message


def test_an_answer_that_is_no_status_has_its_reason() -> None:
    error = ApiException(status=502, reason="Bad Gateway")
    error.body = "<html>"
    assert fault_of(error).message == "Bad Gateway"
