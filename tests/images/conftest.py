from __future__ import annotations

import pytest
from decodepool_cluster import tools


@pytest.fixture(scope="session", autouse=True)
def can_build() -> None:
    if reason := tools.missing_for_building():
        pytest.skip(reason)
    tools.build()
