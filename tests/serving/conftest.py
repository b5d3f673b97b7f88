from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.live_server import Live, live_worker


@pytest.fixture
def live() -> Iterator[Live]:
    with live_worker() as worker:
        yield worker
