"""Whether an object has to be written: what is wanted, against what is there.

Every applied object carries a digest of what was wanted. A live object is left alone where it carries the digest of
what is wanted now and still has every wanted field: what others added, be it an item of a list, and what the server
filled in, is theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from decodepool_operator.planner.quantities import same_quantity
from decodepool_operator.planner.state import Object

APPLIED = "decodepool.dev/applied"
DIGEST_CHARACTERS = 16
AMOUNTS = frozenset({"limits", "requests", "sizeLimit"})
"""Keys below which values are quantities."""


KEYS: Mapping[str, str | None] = {
    "ownerReferences": "uid",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "tolerations": None,
    "topologySpreadConstraints": None,
}
"""Lists that others may add to, and what an item of each is known by; None: by the whole of it. Applying takes nothing
of theirs away, or they add it again, each time. Every other list says who may do what, or what is run: it is just what
is wanted.
"""


def digest(value: Any) -> str:
    """Return a short digest of a JSON value, the same in every order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def stamped(wanted: Object) -> Object:
    """Return an object with its own digest among its annotations."""
    metadata = wanted["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: digest(wanted)}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def needs_writing(wanted: Object, live: Object | None) -> bool:
    """Say whether a stamped object has to be applied."""
    return live is None or not agrees(wanted, live)


def same_stamp(wanted: Object, live: Object) -> bool:
    """Say whether a live object was applied from just what is wanted now."""
    return bool((live["metadata"].get("annotations") or {}).get(APPLIED) == wanted["metadata"]["annotations"][APPLIED])


def agrees(wanted: Any, live: Any, *, field: str = "", amounts: bool = False) -> bool:
    """Say whether every wanted field is there. What is empty, zero or false may be absent: the server leaves out what
    is as if it were not. `field` is the name it has; `amounts`: values are quantities, which the server writes in its
    own form.
    """
    if not wanted and live is None:
        return True
    if isinstance(wanted, dict):
        there = live or {}
        return isinstance(there, dict) and all(
            agrees(each, there.get(key), field=key, amounts=amounts or key in AMOUNTS) for key, each in wanted.items()
        )
    if isinstance(wanted, list):
        found = live or []
        return isinstance(found, list) and _lists_agree(wanted, found, field)
    return bool(wanted == live) or (amounts and same_quantity(wanted, live))


def _lists_agree(wanted: list[Any], live: list[Any], field: str) -> bool:
    key = KEYS.get(field)
    if key is not None and all(isinstance(each, dict) and key in each for each in wanted):
        there = {str(each.get(key)): each for each in live if isinstance(each, dict)}
        return all(agrees(each, there.get(str(each[key]))) for each in wanted)
    if field in KEYS and key is None:
        return all(any(agrees(each, other) for other in live) for each in wanted)
    return len(wanted) == len(live) and all(agrees(each, other) for each, other in zip(wanted, live, strict=True))
