from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.processes import PoolProcess, running_pool


@pytest.fixture(scope="session")
def standing_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolProcess]:
    """Two workers of four sessions, for all tests that break nothing."""
    with running_pool(tmp_path_factory.mktemp("pool"), each=["--step-seconds=0.005"]) as pool:
        yield pool


@pytest.fixture
def pool(standing_pool: PoolProcess) -> Iterator[PoolProcess]:
    """The standing pool, without a session in it."""
    yield standing_pool
    standing_pool.close_all()
