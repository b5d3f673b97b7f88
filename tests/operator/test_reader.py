"""What the reader Job runs: facts as last words, or one line why not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from decodepool_operator.reader import main
from decodepool_sizing.facts import ModelFacts, read_facts

from tests.sizing.gguf_bytes import BytesReader, tiny


@pytest.fixture
def last_words(tmp_path: Path) -> Path:
    path = tmp_path / "termination-log"
    path.touch()
    return path


def test_the_facts_are_printed_and_left_as_last_words(
    tmp_path: Path, last_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(tiny())
    assert main([str(file)], last_words) == 0
    printed = capsys.readouterr().out
    assert last_words.read_text() == printed.strip()
    assert ModelFacts.from_json(printed) == read_facts(BytesReader(tiny()))


def test_a_file_that_is_not_there_is_one_line(
    tmp_path: Path, last_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "absent.gguf")], last_words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.strip()) == ("", "NotFound: no such file or directory")
    assert last_words.read_text() == "NotFound: no such file or directory"


def test_without_a_place_for_last_words_it_still_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(tiny()[:500])
    assert main([str(file)], tmp_path / "nowhere") == 2
    assert capsys.readouterr().err.startswith("Truncated: ")
    assert not (tmp_path / "nowhere").exists()


def test_it_takes_one_path(last_words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], last_words) == 2
    assert capsys.readouterr().err.startswith("usage: ")


SLOW = """
import time
from decodepool_operator import reader

def read_facts(_):
    print("reading", flush=True)
    time.sleep(60)

reader.read_facts = read_facts
reader.main([reader.__file__])
"""


def test_a_reader_that_is_told_to_end_ends_by_itself() -> None:
    """As process 1 of a pod it would otherwise go on until it is killed."""
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 143
