"""Session ids: `s-RANDOM`, and in a pool `s-TAG-RANDOM`, where the tag names the worker that has the session.

A worker and whoever stands before it compute the same tag from the worker's uid, so an id alone finds its session.
"""

from __future__ import annotations

import re
from hashlib import sha256

TAG_CHARACTERS = 10
RANDOM_CHARACTERS = 22
"""Of 128 random bits in URL-safe base64."""

_TAGGED = re.compile(rf"s-([0-9a-f]{{{TAG_CHARACTERS}}})-[\w-]{{{RANDOM_CHARACTERS}}}", re.ASCII)


def worker_tag(uid: str) -> str:
    """Return the tag of the worker with this uid: 10 hexadecimal digits."""
    return sha256(uid.encode()).hexdigest()[:TAG_CHARACTERS]


def session_id(random: str, tag: str | None = None) -> str:
    """Return the id with these random characters; tagged, where there is a tag."""
    return f"s-{random}" if tag is None else f"s-{tag}-{random}"


def tag_of(session_id: str) -> str | None:
    """Return the tag in an id; None where it has none, be it an id of a worker without a tag or no id at all."""
    found = _TAGGED.fullmatch(session_id)
    return None if found is None else found[1]


def random_of(session_id: str) -> str:
    """Return the random characters of an id: what nobody can guess."""
    return session_id[-RANDOM_CHARACTERS:]
