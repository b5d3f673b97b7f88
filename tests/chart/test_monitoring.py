"""Alerts and dashboard ask for series that the programs export, and every alert is explained in docs/operating.md."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.chart.exported import series
from tests.chart.rendering import CHART

OPERATING = (CHART.parents[1] / "docs" / "operating.md").read_text()
GROUPS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
DRAWN = {title: panel for title, panel in PANELS.items() if panel["type"] != "row"}

EXPRESSIONS = {f"alert {name}": [rule["expr"]] for name, rule in ALERTS.items()}
EXPRESSIONS |= {f"panel {title}": [each["expr"] for each in panel["targets"]] for title, panel in DRAWN.items()}
EXPRESSIONS |= {f"variable {each['name']}": [each["query"]] for each in DASHBOARD["templating"]["list"][1:]}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_series_that_is_asked_for_is_exported(name: str) -> None:
    for expression in EXPRESSIONS[name]:
        asked = set(re.findall(r"\bdecodepool_\w+", expression))
        assert asked
        assert asked <= series()


@pytest.mark.parametrize("program", ["operator.shell", "gateway", "worker.serving"])
def test_no_series_is_doubled_by_when_it_began(program: str) -> None:
    """In a process of its own: whether these are made is said once, for all that a process imports."""
    tell = f"from decodepool_{program}.metrics import Metrics; print(Metrics().exposition().decode())"
    told = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, timeout=60, check=True).stdout
    names = re.findall(r"^(\w+)(?:{[^}]*})? ", told, re.MULTILINE)
    assert any(name.endswith("_count") for name in names)
    assert not [name for name in names if name.endswith("_created")]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_expression_closes_what_it_opens(name: str) -> None:
    for expression in EXPRESSIONS[name]:
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing)
        assert expression.count('"') % 2 == 0


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_what_is_wrong_what_it_means_and_how_bad_it_is(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {"summary", "description"} == set(rule["annotations"])
    assert rule["annotations"]["description"].endswith(".")


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_is_explained_for_who_is_woken_by_it(name: str) -> None:
    assert f"`{name}`" in OPERATING


def test_no_alert_is_explained_that_there_is_not() -> None:
    assert set(re.findall(r"`(DecodePool[A-Z]\w+)`", OPERATING)) - {"DecodePoolStatus"} <= set(ALERTS)


@pytest.mark.parametrize("name", [name for name, rule in ALERTS.items() if "$labels.pool" in str(rule)])
def test_an_alert_that_names_a_pool_has_its_labels_and_no_others(name: str) -> None:
    """One more, as a pod's name or a reason, would begin the waiting anew whenever it changes."""
    kept = re.findall(r"\bby \(([^)]*)\)", ALERTS[name]["expr"])
    assert kept
    assert all({label.strip() for label in each.split(",")} - {"le"} == {"namespace", "pool"} for each in kept)


def rectangle(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert not taken & rectangle(panel)
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        taken |= rectangle(panel)


@pytest.mark.parametrize("title", DRAWN)
def test_every_panel_reads_from_the_chosen_prometheus(title: str) -> None:
    assert DRAWN[title]["datasource"] == {"type": "prometheus", "uid": "$datasource"}
