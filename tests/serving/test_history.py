from __future__ import annotations

from decodepool_worker.serving.history import POINTS, History, Point
from decodepool_worker.sessions.pages import PageCounts
from decodepool_worker.sessions.stats import Stats, Totals


def stats(steps: int, drawn: int, prefilled: int) -> Stats:
    totals = Totals(steps=steps, decoded_tokens=drawn, prefilled_tokens=prefilled)
    return Stats({}, 4, PageCounts(1, 1, 0, 0, 0, 1), totals, None, draining=False, fault=None)


def test_a_point_is_what_changed_in_its_second() -> None:
    now, spent, seen = [0.0], [0.0], [stats(0, 0, 0)]
    history = History(lambda: seen[0], lambda: spent[0], lambda: now[0])
    history.sample()
    now[0], spent[0], seen[0] = 2.0, 0.5, stats(10, 40, 60)
    history.sample()
    now[0] = 3.0
    history.sample()
    assert list(history.points) == [Point(20.0, 50.0, 10.0), Point(0.0, None, None)]


def test_nothing_is_drawn_before_a_model_is_loaded() -> None:
    history = History(lambda: None, lambda: 0.0)
    history.sample()
    assert not history.points


def test_only_the_last_points_are_kept() -> None:
    history = History(lambda: stats(0, 0, 0), lambda: 0.0)
    for _ in range(POINTS + 50):
        history.sample()
    assert len(history.points) == POINTS
