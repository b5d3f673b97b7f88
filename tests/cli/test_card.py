"""A card's clock and power stand beside what was timed meanwhile, where the driver's program tells them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.gpu.card import Card, Sample, watched_card
from bench.gpu.h200 import card_shown

TOLD = """#!/bin/sh
while :; do
  echo "1980, 694.12"
  echo "[N/A], [N/A]"
  sleep 0.02
done
"""


def path_with(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str | None) -> None:
    if program is not None:
        (folder / "nvidia-smi").write_text(program)
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) if program is None else f"{folder}:/usr/bin:/bin")


def test_rows_have_what_the_card_told_while_they_were_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path_with(monkeypatch, tmp_path, TOLD)
    began = time.perf_counter()
    with watched_card() as card:
        while not card.samples:
            time.sleep(0.01)
            assert time.perf_counter() < began + 30
    assert card.between(began, time.perf_counter()) == {"sm_mhz": 1980, "power_watts": 694.1}
    assert card.between(began - 1, began) == {}


ECHO = """#!/bin/sh
case "$1" in --id=$WANTED) echo "1, 2.0" ;; esac
"""


@pytest.mark.parametrize(("visible", "wanted"), [(None, "0"), ("3,1", "3"), ("GPU-8f", "GPU-8f")], ids=str)
def test_the_card_that_is_watched_is_the_first_that_cuda_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, wanted: str
) -> None:
    path_with(monkeypatch, tmp_path, ECHO)
    monkeypatch.setenv("WANTED", wanted)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    began = time.perf_counter()
    with watched_card() as card:
        while not card.samples:
            time.sleep(0.01)
            assert time.perf_counter() < began + 30
    assert card.samples[0].sm_mhz == 1


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 9\n"], ids=["no nvidia-smi", "one that ends"])
def test_a_card_of_which_nothing_is_told_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    path_with(monkeypatch, tmp_path, program)
    with watched_card() as card:
        began = time.perf_counter()
    assert card.between(began, time.perf_counter()) == {}
    assert card_shown({"step_ms": 1.0}) == ""


def test_what_is_no_clock_and_power_tells_nothing() -> None:
    card = Card()
    card.listen(["no devices were found\n", "[N/A], [N/A]\n", "\n", "1980\n"])
    assert card.samples == []


def test_a_fault_of_what_is_measured_ends_the_watch_and_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_with(monkeypatch, tmp_path, TOLD)
    with pytest.raises(RuntimeError, match="lost"), watched_card():
        raise RuntimeError("lost")


def test_medians_are_told() -> None:
    card = Card([Sample(1.0, 1980, 600.0), Sample(2.0, 1500, 700.04), Sample(3.0, 1600, 690.0), Sample(9.0, 1, 1.0)])
    told = card.between(1.0, 3.0)
    assert told == {"sm_mhz": 1600, "power_watts": 690.0}
    assert card_shown(told) == ", 1600 MHz, 690.0 W"
