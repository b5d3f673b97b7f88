"""What the watches have told so far: objects by name, and by the pool they belong to.

Written from three sides: watches, the answers to this operator's own writes (so that it reads what it wrote), and the
audit's lists. The newest resource version of an object wins, whoever brings it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from decodepool_operator.api.kinds import NODES, PODS, POOLS, Kind
from decodepool_operator.names import POOL_LABEL, SIDECAR_LABEL, PoolKey

Object = dict[str, Any]
REMEMBERED_DELETIONS = 1000


class Store:
    """The last known state of every object that may concern a pool. For one event loop: no locks."""

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[PoolKey, Object]] = {}
        self._by_pool: dict[PoolKey, dict[tuple[Kind, str], None]] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()

    def put(self, kind: Kind, body: Mapping[str, Any]) -> bool:
        """Take an object; return whether it is news. What is older than what is known, or than its deletion, is not."""
        metadata = body["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        known = self._objects.setdefault(kind, {}).get(key)
        if self._is_deleted(metadata) or (known and not _is_newer(metadata, known["metadata"])):
            return False
        self._objects[kind][key] = trimmed(kind, body)
        for pool in pools_of(kind, body):
            self._by_pool.setdefault(pool, {})[kind, key[1]] = None
        return True

    def claim(self, pool: PoolKey, kind: Kind, body: Object) -> None:
        """Show a pool an object that bears a child's name and is not the pool's."""
        self.put(kind, body)
        self._by_pool.setdefault(pool, {})[kind, body["metadata"]["name"]] = None

    def remove(self, kind: Kind, body: Mapping[str, Any]) -> bool:
        """Forget an object that was deleted, or has lost the label by which it is watched: a watch calls both DELETED.
        Return whether it was known. One made anew under its name stays, and so does one that is newer than the news.
        """
        metadata = body["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        known = self._objects.get(kind, {}).get((namespace, name))
        is_same = known is not None and known["metadata"].get("uid") == metadata.get("uid")
        if known and is_same and _version(known["metadata"]) > _version(metadata):
            return False
        self._remember_deletion(metadata)
        if known is None or not is_same:
            return False
        del self._objects[kind][namespace, name]
        for pool in pools_of(kind, known):
            self._drop_reference(pool, kind, name)
        return True

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        return self._objects.get(kind, {}).get((namespace, name))

    def pool(self, key: PoolKey) -> Object | None:
        """Return a pool, or None."""
        return self.get(POOLS, *key)

    def pools(self) -> tuple[PoolKey, ...]:
        """Return the keys of every pool."""
        return tuple(self._objects.get(POOLS, {}))

    def nodes(self) -> tuple[Object, ...]:
        """Return every node."""
        return tuple(self._objects.get(NODES, {}).values())

    def children(self, key: PoolKey) -> tuple[Object, ...]:
        """Return what carries a pool's label, pods apart."""
        return tuple(body for kind, body in self._labelled(key) if kind is not PODS)

    def pods(self, key: PoolKey) -> tuple[Object, ...]:
        """Return a pool's pods: workers, gateways, readers and those with its sidecar."""
        return tuple(body for kind, body in self._labelled(key) if kind is PODS)

    def all(self, kind: Kind) -> Mapping[PoolKey, Object]:
        """Return every known object of a kind."""
        return self._objects.get(kind, {})

    def _remember_deletion(self, metadata: Mapping[str, Any]) -> None:
        self._deleted[str(metadata.get("uid"))] = _version(metadata)
        while len(self._deleted) > REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def _is_deleted(self, metadata: Mapping[str, Any]) -> bool:
        """Whether an object is of before it was deleted. A label that comes back brings it back, as a newer version."""
        uid = str(metadata.get("uid"))
        return uid in self._deleted and _version(metadata) <= self._deleted[uid]

    def _labelled(self, key: PoolKey) -> Iterator[tuple[Kind, Object]]:
        for kind, name in tuple(self._by_pool.get(key, ())):
            body = self.get(kind, key[0], name)
            if body is not None:
                yield kind, body

    def _drop_reference(self, pool: PoolKey, kind: Kind, name: str) -> None:
        references = self._by_pool.get(pool, {})
        references.pop((kind, name), None)
        if not references:
            self._by_pool.pop(pool, None)


def pools_of(kind: Kind, body: Mapping[str, Any]) -> tuple[PoolKey, ...]:
    """Return the pools that an object says it belongs to: none for nodes, itself for a pool."""
    metadata = body["metadata"]
    namespace = metadata.get("namespace", "")
    if kind is POOLS or kind is NODES:
        return ()
    labels = metadata.get("labels") or {}
    names = {labels.get(POOL_LABEL), labels.get(SIDECAR_LABEL) if kind is PODS else None} - {None, ""}
    return tuple((namespace, str(name)) for name in sorted(names, key=str))


def trimmed(kind: Kind, body: Mapping[str, Any]) -> Object:
    """Return an object without what nobody here reads: a node's images, and managed fields but a pool's own."""
    dropped = () if kind is POOLS else ("managedFields",)
    kept = {**body, "metadata": {k: v for k, v in body["metadata"].items() if k not in dropped}}
    kept.setdefault("apiVersion", kind.api_version)
    kept.setdefault("kind", kind.name)
    if kind is NODES and "status" in kept:
        kept["status"] = {k: v for k, v in kept["status"].items() if k != "images"}
    return kept


def _is_newer(metadata: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether an object is news. Versions of one kind are numbers that grow (KEP-5504)."""
    if metadata.get("uid") != known.get("uid"):
        return True
    return _version(metadata) > _version(known)


def _version(metadata: Mapping[str, Any]) -> int:
    return int(metadata.get("resourceVersion") or 0)
