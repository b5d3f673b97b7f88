"""Which file a pool's model is, and what is known of it: from the status, from the shell, or from a reader Job's pod."""

from __future__ import annotations

import hashlib
import json

from decodepool_sizing.facts import FactsError, ModelFacts

from decodepool_operator.state import Object

SOURCE_KEY_CHARACTERS = 16


def source_key(pool: Object) -> str:
    """Return a name for the pool's present source: it changes when another file might be meant."""
    source = pool["spec"]["model"]["source"]
    text = json.dumps(source, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:SOURCE_KEY_CHARACTERS]


def known_facts(pool: Object) -> ModelFacts | None:
    """Return what the status remembers of the pool's present source; None where it has to be read."""
    model = pool.get("status", {}).get("model", {})
    if model.get("source") != source_key(pool) or not isinstance(model.get("facts"), str):
        return None
    try:
        return ModelFacts.from_json(model["facts"])
    except FactsError:
        return None
