"""Everything the planner is told of one pool, from memory: looking at a pool asks nobody."""

from __future__ import annotations

from dataclasses import dataclass, field

from decodepool_operator.names import MANAGER, MANAGER_LABEL, PoolKey
from decodepool_operator.planner.state import Object, Observed
from decodepool_operator.shell.reports import Reports
from decodepool_operator.shell.resolve import Resolver
from decodepool_operator.shell.settings import Settings
from decodepool_operator.shell.store import Store


@dataclass
class World:
    """What one operator knows."""

    settings: Settings
    store: Store
    reports: Reports
    resolver: Resolver
    has_pod_monitors: bool = False
    notices: tuple[str, ...] = ()
    """What is wrong for every pool, one line each, such as a CRD older than this operator."""
    faults: dict[PoolKey, tuple[str, ...]] = field(default_factory=dict)
    """What the API refused of each pool's last plan."""

    def observe(self, key: PoolKey, pool: Object) -> Observed:
        """Return the world around a pool. Begins to read its model where that is due."""
        return Observed(
            images=self.settings.images,
            children=self.store.children(key),
            pods=self.store.pods(key),
            nodes=self.store.nodes() if self.settings.reads_nodes else None,
            reports=self.reports.of(key),
            resolution=self.resolver.resolution(pool),
            has_pod_monitors=self.has_pod_monitors,
            scraping=self.settings.scraping,
            queued=self.reports.queued(key),
            operator_namespace=self.settings.own_namespace,
            faults=self.notices + self.faults.get(key, ()),
        )

    def is_watched(self, body: Object) -> bool:
        """Whether the watches tell of an object's changes."""
        labels = body["metadata"].get("labels") or {}
        return labels.get(MANAGER_LABEL) == MANAGER

    def forget(self, key: PoolKey) -> None:
        """Forget what was remembered of a pool that is gone."""
        self.faults.pop(key, None)
