from __future__ import annotations

import pytest
from decodepool_worker.sessions.residence import Residence

from tests.sessions.checking_engine import CheckingEngine


@pytest.fixture
def engine() -> CheckingEngine:
    return CheckingEngine(page_count=24, slot_count=4, max_step_rows=128)


@pytest.fixture
def residence(engine: CheckingEngine) -> Residence:
    return Residence(engine, context_tokens=256, sessions=4)
