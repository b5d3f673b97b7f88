"""An API server in memory that takes what the operator's writers send: server-side apply with owners of fields, uids,
resource versions, and refusals on demand.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import Kind, kind_of

Object = dict[str, Any]


class FakeApi:
    """Stands where `decodepool_operator.api.client.Api` does. `calls` is what was asked of it, in order."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.calls: list[tuple[str, str]] = []
        self.refusals: dict[tuple[str, str], list[ApiFault]] = {}
        self.lagging: set[str] = set()
        """Names of objects that the server does not have in memory yet."""
        self._versions = itertools.count(1)

    def refuse(self, verb: str, name: str, *faults: ApiFault) -> None:
        """Have the next calls of a verb about an object fail."""
        self.refusals.setdefault((verb, name), []).extend(faults)

    def put(self, body: Object) -> Object:
        """Have an object, as if somebody else had made it."""
        return self._store(body)

    def of(self, kind: str) -> list[Object]:
        return [body for (found, _, _), body in self.objects.items() if found == kind]

    def get(self, kind: Kind, namespace: str | None, name: str, *, cached: bool = False) -> Object:
        self._ask("get", name)
        if cached and name in self.lagging:
            raise ApiFault(Refusal.NOT_FOUND, f"{kind.name} {name} not found")
        return copy.deepcopy(self._find(kind.name, namespace, name))

    def apply(self, body: Object, *, force: bool = False) -> Object:
        self._ask("force" if force else "apply", body["metadata"]["name"])
        return self._store(body)

    def merge(
        self, kind: Kind, namespace: str | None, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        self._ask(subresource or "merge", name)
        known = self._find(kind.name, namespace, name)
        if patch.get("metadata", {}).get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            raise ApiFault(Refusal.STALE, "the object has been modified")
        return self._store(_merged(known, patch))

    def replace(self, kind: Kind, namespace: str, name: str, body: Object, subresource: str | None = None) -> Object:
        self._ask(subresource or "replace", name)
        known = self._find(kind.name, namespace, name)
        if known["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            raise ApiFault(Refusal.STALE, "the object has been modified")
        return self._store(body)

    def create(self, body: Object) -> Object:
        self._ask("create", body["metadata"]["name"])
        if _key(body) in self.objects:
            raise ApiFault(Refusal.STALE, "already exists")
        return self._store(body)

    def delete(self, kind: Kind, namespace: str | None, name: str, uid: str | None) -> None:
        self._ask("delete", name)
        known = self.objects.get((kind.name, namespace or "", name))
        if known is not None and uid in (None, known["metadata"]["uid"]):
            del self.objects[kind.name, namespace or "", name]

    def json_patch(self, kind: Kind, namespace: str | None, name: str, operations: list[Object]) -> Object:
        self._ask("json_patch", name)
        body = copy.deepcopy(self._find(kind.name, namespace, name))
        for operation in operations:
            _, _, index, *path = operation["path"].split("/")
            target = body["webhooks"][int(index)]
            for part in path[:-1]:
                target = target[part]
            target[path[-1]] = operation["value"]
        return self._store(body)

    def list_metadata(self, kind: Kind, namespace: str | None) -> Iterator[Object]:
        self._ask("list", kind.plural)
        for body in self.of(kind.name):
            if namespace in (None, body["metadata"].get("namespace", "")):
                yield copy.deepcopy(body["metadata"])

    def _ask(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        waiting = self.refusals.get((verb, name))
        if waiting:
            raise waiting.pop(0)

    def _find(self, kind: str, namespace: str | None, name: str) -> Object:
        try:
            return self.objects[kind, namespace or "", name]
        except KeyError:
            raise ApiFault(Refusal.NOT_FOUND, f"{kind} {name} not found") from None

    def _store(self, body: Object) -> Object:
        made = copy.deepcopy(body)
        known = self.objects.get(_key(made))
        made["metadata"].setdefault("uid", known["metadata"]["uid"] if known else f"uid-{next(self._versions)}")
        made["metadata"]["resourceVersion"] = str(next(self._versions))
        kind_of(made)  # KeyError for what this operator has no business with
        self.objects[_key(made)] = made
        return copy.deepcopy(made)


def _key(body: Object) -> tuple[str, str, str]:
    return (body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _merged(body: Object, patch: Object) -> Object:
    made = copy.deepcopy(body)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
            continue
        made[key] = _merged(made.get(key) or {}, value) if isinstance(value, dict) else value
    return made
