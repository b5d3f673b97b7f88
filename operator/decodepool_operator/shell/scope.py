"""Which of its namespaces an operator can serve.

One of the list may be deleted, and the operator's Role in it goes along; or somebody takes the Role away. Watches end
for good at a namespace that refuses them, and the first listing never ends: without this, one such namespace would take
the operator from all the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from decodepool_operator.api.client import Api
from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.api.kinds import Kind

log = logging.getLogger(__name__)


class Scope:
    """The namespaces of a list in which every kind can be listed."""

    def __init__(self, api: Api, namespaces: Iterable[str], kinds: Iterable[Kind]) -> None:
        self._api = api
        self._kinds = tuple(kind for kind in kinds if kind.namespaced)
        self._refused: dict[str, str | None] = dict.fromkeys(namespaces, "not asked yet")

    @property
    def served(self) -> tuple[str, ...]:
        """The namespaces that can be served."""
        return tuple(name for name, refusal in self._refused.items() if refusal is None)

    @property
    def unserved(self) -> int:
        """How many cannot."""
        return len(self._refused) - len(self.served)

    def look(self) -> bool:
        """Ask in every namespace, log what changed, and return whether others can be served than before. Blocks.

        Where the API server does not answer, nothing has changed.
        """
        before = self.served
        for name, known in self._refused.items():
            found = self._ask(name, known)
            if found and found != known:
                log.warning("a namespace cannot be served", extra={"fields": {"namespace": name, "fault": found}})
            self._refused[name] = found
        return self.served != before

    def _ask(self, namespace: str, known: str | None) -> str | None:
        try:
            for kind in self._kinds:
                self._api.try_list(kind, namespace)
        except ApiFault as fault:
            return fault.message if fault.refusal is Refusal.FORBIDDEN else known
        return None
