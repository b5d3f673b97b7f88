"""Other operators that serve what this one serves: they would undo each other's work for ever.

Helm refuses such a release, where it may look. This finds what came otherwise, by the heartbeats of operators: Leases
in the namespaces that they serve, or in their own where they serve all.
"""

from __future__ import annotations

from collections.abc import Iterable

from decodepool_operator.api.client import Api
from decodepool_operator.api.kinds import LEASES
from decodepool_operator.names import COMPONENT_LABEL, NAME_LABEL, PRODUCT_NAME

OPERATORS = f"{NAME_LABEL}={PRODUCT_NAME},{COMPONENT_LABEL}=operator"


class Rivals:
    """Looks at the heartbeats in some namespaces, None for all. One that went on between two looks is an operator's."""

    def __init__(self, api: Api, holder: str, namespaces: Iterable[str | None]) -> None:
        self._api = api
        self._holder = holder
        self._namespaces = tuple(namespaces)
        self._seen: dict[str, str] = {}

    def look(self) -> list[str]:
        """Return who else serves, as NAMESPACE/LEASE. Blocks; ApiFault where Leases cannot be listed."""
        before, self._seen = self._seen, self._beats()
        return sorted(name for name, beat in self._seen.items() if before.get(name, beat) != beat)

    def _beats(self) -> dict[str, str]:
        """The time of each heartbeat that is not this operator's own."""
        found = {}
        for namespace in self._namespaces:
            listed = self._api.call("GET", LEASES.path(namespace), query=[("labelSelector", OPERATORS)])
            for lease in listed.get("items") or ():
                metadata, spec = lease["metadata"], lease.get("spec") or {}
                if spec.get("holderIdentity") not in (None, self._holder):
                    found[f"{metadata['namespace']}/{metadata['name']}"] = str(spec.get("renewTime"))
        return found
