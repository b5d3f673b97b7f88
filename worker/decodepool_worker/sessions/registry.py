"""Ids to sessions, and for a while why an id is no more."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator

from decodepool_sizing.session_ids import session_id, tag_of

from decodepool_worker.sessions.errors import SessionGone, UnknownSession
from decodepool_worker.sessions.session import Session


class Registry:
    """Live sessions in the order of their creation, and the last `remembered` gone ones with the reason.

    With a tag, every id that bears it was made here, if not in this process: what is not known was once.
    """

    def __init__(self, remembered: int, tag: str | None = None) -> None:
        self._tag = tag
        self._live: dict[str, Session] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._remembered = remembered

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._live.values()))

    def new_id(self) -> str:
        """Make an id that nobody can guess: whoever has it may use the session."""
        return session_id(secrets.token_urlsafe(16), self._tag)

    def add(self, session: Session) -> None:
        """Make a session findable."""
        self._live[session.id] = session

    def get(self, session_id: str) -> Session | None:
        """Return a live session, or None."""
        return self._live.get(session_id)

    def find(self, session_id: str) -> Session:
        """Return a live session; `SessionGone` with the reason, or `UnknownSession`."""
        session = self._live.get(session_id)
        if session is not None:
            return session
        if session_id in self._gone:
            raise SessionGone(session_id, self._gone[session_id])
        if self._tag is not None and tag_of(session_id) == self._tag:
            raise SessionGone(session_id, "it ended long ago, or its worker has started again since")
        raise UnknownSession(session_id)

    def remove(self, session: Session, reason: str) -> None:
        """Forget a live session and remember why."""
        del self._live[session.id]
        self._gone[session.id] = reason
        while len(self._gone) > self._remembered:
            self._gone.popitem(last=False)
