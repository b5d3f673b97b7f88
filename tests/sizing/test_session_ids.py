"""The one thing that a worker and a gateway must agree on: whose an id is."""

from __future__ import annotations

import pytest
from decodepool_sizing.session_ids import random_of, session_id, tag_of, worker_tag

RANDOM = "59Opd93QrT3Kz1rvKG_h-A"


def test_a_workers_tag_is_ten_digits_of_its_uids_digest() -> None:
    assert worker_tag("0b8f3d52-4f0e-4f5c-9a53-3a1f54a0c111") == "ff134a2104"


def test_an_id_names_its_worker() -> None:
    assert tag_of(session_id(RANDOM, "ff134a2104")) == "ff134a2104"
    assert random_of(session_id(RANDOM, "ff134a2104")) == random_of(session_id(RANDOM)) == RANDOM


@pytest.mark.parametrize(
    "name",
    [
        session_id(RANDOM),
        session_id("0123456789-" + RANDOM[11:]),  # random characters that look like a tag
        "s-ff134a2104-short",
        "s-FF134A2104-" + RANDOM,
        "s-ff134a2104-" + RANDOM + "\n",
        "s-ff134a2104-" + RANDOM[:-1] + "é",
        "",
    ],
)
def test_what_no_worker_of_a_pool_made_names_none(name: str) -> None:
    assert tag_of(name) is None
