"""docs/operating.md explains every reason that a pool's conditions can have, and none that they cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from decodepool_operator.planner.conditions import TYPES

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "docs" / "operating.md").read_text().partition("### What each condition means")[2].partition("\n### ")[0]
)
ROWS = [line.split(" | ") for line in SECTION.splitlines() if line.startswith("| ")]
EXPLAINED = {word for row in ROWS for word in re.findall(r"`([A-Z]\w+)`", row[1] if len(row) > 1 else "")}


def explained() -> dict[str, set[str]]:
    """The reasons under each condition: a row without one goes on with that of the row before."""
    found: dict[str, set[str]] = {}
    name = ""
    for row in ROWS:
        name = row[0].removeprefix("| ").strip(" |") or name
        found.setdefault(name, set()).update(re.findall(r"`([A-Z]\w+)`", row[1] if len(row) > 1 else ""))
    return found


SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "operator").rglob("*.py")))
FACTS = (ROOT / "sizing" / "decodepool_sizing" / "facts.py").read_text()
GIVEN = re.compile(
    r"""Finding\(\s*"\w+",\s*(?:"\w+"|status),\s*"([A-Z]\w+)"    # a condition
      | \b(?:Refused|Unresolved|Trouble)\(\s*"([A-Z]\w+)"       # what becomes one
      | \buntouched\(\w+,\s*"([A-Z]\w+)"                       # what cannot be planned
      | \breturn\s\(?"([A-Z]\w+)"(?:,\s|\sif\s)               # a reason and a message
    """,
    re.VERBOSE,
)
KUBERNETES = {"CrashLoopBackOff", "CreateContainerConfigError", "SchedulingGated"}
"""Reasons that pods bring along."""

EXCEPTIONS = {"ContextTooLong", "BadDemand"}
"""Those whose name is the reason."""

UNREMARKABLE = {"NotWaiting", "NoGPUNeeded", "NotDraining", "AsPlanned", "Resolved", "Planned", "Failed"}
"""Reasons of a condition that is as it should be."""


def given() -> set[str]:
    """The reasons that the operator's sources give."""
    found = {word for groups in GIVEN.findall(SOURCES) for word in groups if word}
    return found | set(re.findall(r'"([A-Z]\w+)"\)', FACTS)) | {"UnsupportedArchitecture", "BadModelFile"}


def test_there_are_reasons_to_explain() -> None:
    assert len(given()) > 30
    assert {"CannotFit", "Unschedulable", "NotGGUF", "TwoAutoscalers"} <= given() | EXPLAINED


def test_every_reason_that_is_given_is_explained() -> None:
    assert given() - EXPLAINED - UNREMARKABLE == set()


def test_every_reason_that_is_explained_is_given() -> None:
    unknown = {word for word in EXPLAINED if f'"{word}"' not in SOURCES + FACTS}
    assert unknown <= KUBERNETES | EXCEPTIONS


PASSED_ON = {"Unschedulable", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "FailedCreate"}
"""Troubles that are given by a name or beside another."""


def test_what_keeps_a_worker_from_serving_is_explained_wherever_it_is_told() -> None:
    """One trouble is told by two conditions: of workers that are not there, and of a pool that others serve."""
    troubles = set(re.findall(r"""\bTrouble\(\s*"([A-Z]\w+)\"""", SOURCES)) | PASSED_ON | KUBERNETES
    assert len(troubles) > 12
    for condition in ("WorkersAvailable = False", "Degraded = True"):
        assert troubles - explained()[condition] == set(), condition


@pytest.mark.parametrize("condition", ["Ready = True", "WaitingForGPU = True", "Draining = True"])
def test_a_condition_has_the_reasons_that_its_function_gives(condition: str) -> None:
    kind, _, status = condition.partition(" = ")
    given_here = set(re.findall(rf"""Finding\("{kind}",\s"{status}",\s"([A-Z]\w+)\"""", SOURCES))
    assert given_here
    assert given_here <= explained()[condition]


def test_degraded_has_the_reasons_that_its_functions_give() -> None:
    body = "".join(re.findall(r"(?s)def (?:_refused_writes|_refused_objects|_unlike_the_plan)\(.*?\n\n\n", SOURCES))
    words = set(re.findall(r"""return "([A-Z]\w+)\"|else "([A-Z]\w+)\"""", body))
    reasons = {word for pair in words for word in pair if word}
    assert len(reasons) > 5
    assert reasons <= explained()["Degraded = True"]


def test_every_condition_is_explained() -> None:
    told = {row[0].removeprefix("| ").split(" = ")[0] for row in ROWS}
    assert set(TYPES) <= told
