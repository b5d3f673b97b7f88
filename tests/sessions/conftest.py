from __future__ import annotations

import pytest
from decodepool_worker.sessions.residence import Residence

from tests.sessions.checking_engine import BesideEngine, CheckingEngine


@pytest.fixture(params=[CheckingEngine, BesideEngine], ids=["steps in turn", "steps beside the process"])
def engine(request: pytest.FixtureRequest) -> CheckingEngine:
    made: CheckingEngine = request.param(page_count=24, slot_count=4, max_step_rows=128)
    return made


@pytest.fixture
def residence(engine: CheckingEngine) -> Residence:
    return Residence(engine, context_tokens=256, sessions=4)
