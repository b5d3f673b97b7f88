"""Whether an object has to be written: what is wanted, against what is there.

Every applied object carries a digest of what was wanted. A live object is left alone where it carries the digest of
what is wanted now and still has every wanted field: what others added, and what the server filled in, is theirs.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from decodepool_operator.quantities import same_quantity
from decodepool_operator.state import Object

APPLIED = "decodepool.dev/applied"
DIGEST_CHARACTERS = 16
AMOUNTS = frozenset({"limits", "requests", "sizeLimit"})
"""Keys below which values are quantities."""


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


def agrees(wanted: Any, live: Any, *, amounts: bool = False) -> bool:
    """Say whether every wanted field is there. Lists have to be of one length. What is empty, zero or false may be
    absent: the server leaves out what is as if it were not. `amounts`: values are quantities, which the server writes
    in its own form.
    """
    if not wanted and live is None:
        return True
    if isinstance(wanted, dict):
        there = live or {}
        return isinstance(there, dict) and all(
            agrees(each, there.get(key), amounts=amounts or key in AMOUNTS) for key, each in wanted.items()
        )
    if isinstance(wanted, list):
        found = live or []
        same_length = isinstance(found, list) and len(found) == len(wanted)
        return same_length and all(
            agrees(each, other, amounts=amounts) for each, other in zip(wanted, found, strict=True)
        )
    return bool(wanted == live) or (amounts and same_quantity(wanted, live))
