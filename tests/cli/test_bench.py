from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from decodepool_cli.provenance import commit

from tests.cli.conftest import Call
from tests.cli.models import write_untold


@pytest.fixture(scope="module")
def untold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untold(tmp_path_factory.mktemp("models") / "untold.gguf")


def test_it_measures_steps_prefill_and_memory(call: Call, untold: Path) -> None:
    done = call("bench", untold, "--widths", "1,3", "--context", 70, "--kv-type", "f32", "--json")
    assert done.code == 0, done.err
    report = done.json
    assert [(row["sessions"], row["context"], row["kv_type"]) for row in report["decode"]] == [
        (1, 70, "f32"),
        (3, 70, "f32"),
    ]
    assert [(row["sessions"], row["temperature"], row["top_p"]) for row in report["sampled"]] == [
        (1, 0.8, 0.95),
        (3, 0.8, 0.95),
    ]
    for row in report["decode"] + report["sampled"]:
        assert 0 < row["step_ms_min"] <= row["step_ms"] <= row["step_ms_max"]
        assert row["tokens_per_second"] == pytest.approx(row["sessions"] * 1000 / row["step_ms"], rel=0.02)
    assert report["prefill"][0]["context"] == 70
    assert report["prefill"][0]["tokens_per_second"] > 0
    assert report["memory"]["measured_bytes"] > report["memory"]["planned"]["weight_bytes"] > 0
    assert report["machine"]["cores"] >= 1
    assert report["command"].startswith("decodepool bench ")
    assert (report["model"], report["device"]) == ("untold.gguf", "cpu")


def test_people_get_tables(call: Call, untold: Path) -> None:
    done = call("bench", untold, "--widths", "2", "--context", 10)
    assert done.code == 0, done.err
    assert "tokens/s" in done.out
    assert "sampled ms" in done.out
    assert "A prompt of 10 tokens" in done.out


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--widths", "1,0"], "--widths: '0'"),
        (["--widths", "1,x"], "--widths: 'x'"),
        (["--widths", "257"], "--widths: '257'"),
        (["--widths", ""], "--widths: ''"),
        (["--context", "0"], "--context"),
        (["--context", "4096"], "--context: 4096 is more than"),
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_named(call: Call, untold: Path, options: list[str], fault: str) -> None:
    done = call("bench", untold, *options)
    assert done.code == 2
    assert fault in done.err
    assert done.err.count("\n") == 1


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_a_commit_is_named_and_marked_once_something_changed(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("1")
    assert commit(source) == "unknown"
    git(tmp_path, "init")
    assert commit(source) == "unknown"  # a checkout, but not of this file
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert len(commit(source)) == 40
    source.write_text("2")
    assert commit(source).endswith("-dirty")
