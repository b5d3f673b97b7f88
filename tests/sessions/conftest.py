from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from decodepool_worker.sessions.residence import Residence

from tests.sessions.checking_engine import BesideEngine, CheckingEngine

KINDS: dict[str, Callable[..., CheckingEngine]] = {
    "steps in turn": CheckingEngine,
    "steps beside the process": BesideEngine,
    "steps beside the process, at once": partial(BesideEngine, is_quick=True),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def engine(request: pytest.FixtureRequest) -> CheckingEngine:
    made: CheckingEngine = request.param(page_count=24, slot_count=4, max_step_rows=128)
    return made


@pytest.fixture
def residence(engine: CheckingEngine) -> Residence:
    return Residence(engine, context_tokens=256, sessions=4)
