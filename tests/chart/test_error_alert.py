"""The alert of an operator that keeps failing, against how often it really tries: by Prometheus' own arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from decodepool_operator.shell.settings import Settings
from decodepool_operator.shell.work_queue import WorkQueue

from tests.chart.test_monitoring import ALERTS

RULE = ALERTS["DecodePoolOperatorErrors"]
SCRAPE_SECONDS, EVALUATION_SECONDS = 30, 60
HOURS = 3
KEY = ("team", "chat")


def minutes(text: str) -> int:
    return 60 * int(text.removesuffix("m"))


def expression() -> tuple[int, float]:
    """The window of the expression, in seconds, and what its increase has to exceed."""
    found = re.fullmatch(r"sum by \(where, reason\) \(increase\(\w+\[(\d+m)\]\)\) > (\d+)", RULE["expr"])
    assert found, RULE["expr"]
    return minutes(found[1]), float(found[2])


def increase(errors: Sequence[float], now: float, window: int) -> float:
    """What Prometheus takes for the increase of a counter: between the scrapes of a window, stretched to its ends."""
    scrapes = [t for t in range(0, int(now) + 1, SCRAPE_SECONDS) if now - window < t <= now]
    if len(scrapes) < 2:
        return 0.0
    first, last = (sum(error <= scrape for error in errors) for scrape in (scrapes[0], scrapes[-1]))
    if first == last:
        return 0.0
    sampled = scrapes[-1] - scrapes[0]
    to_start, to_end = scrapes[0] - (now - window), now - scrapes[-1]
    to_zero = sampled * first / (last - first)
    return (last - first) * (sampled + min(to_start, to_zero) + to_end) / sampled


def fires_at(errors: Sequence[float]) -> float | None:
    """When the alert fires, None where it does not in some hours."""
    window, bound = expression()
    since: float | None = None
    for now in range(0, HOURS * 3600, EVALUATION_SECONDS):
        if increase(errors, now, window) <= bound:
            since = None
            continue
        since = now if since is None else since
        if now - since >= minutes(RULE["for"]):
            return now
    return None


def of_a_pool() -> list[float]:
    """A pool of which one object is refused at every look: tried again as the queue has it."""
    now, errors = 600.0, []
    queue = WorkQueue(lambda: now)
    while now < HOURS * 3600:
        errors.append(now)
        now += queue.retry(KEY)
    return errors


def of_the_audit() -> list[float]:
    """A kind that may not be listed any more."""
    return [600.0 + each for each in range(0, HOURS * 3600 - 600, round(Settings.audit_seconds))]


LASTING = {"a pool that is refused an object": of_a_pool, "an audit that is refused a list": of_the_audit}
PASSING = {
    "an API server that is away for two minutes": [600.0 + each / 4 for each in range(480)],
    "an error an hour": [600.0, 4200.0, 7800.0],
    "two restarts of the API server, an hour apart": [*range(600, 660), *range(4200, 4260)],
}


@pytest.mark.parametrize("errors", LASTING.values(), ids=LASTING)
def test_what_fails_for_good_is_told_within_the_hour(errors: Callable[[], list[float]]) -> None:
    fired = fires_at(errors())
    assert fired is not None
    assert fired - 600 <= 3600


@pytest.mark.parametrize("errors", PASSING.values(), ids=PASSING)
def test_what_passes_wakes_nobody(errors: list[float]) -> None:
    assert fires_at(errors) is None
