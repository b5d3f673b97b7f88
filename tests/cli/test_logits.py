from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Call
from tests.cli.models import VOCABULARY, write_talking, write_untold
from tests.cli.processes import Running, until
from tests.tiny.reference import Reference

TOKENS = [(i * 53 + 7) % VOCABULARY for i in range(75)]


@pytest.fixture(scope="module")
def untold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untold(tmp_path_factory.mktemp("models") / "untold.gguf")


def listed(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


def test_it_writes_the_logits_after_every_token(call: Call, untold: Path, tmp_path: Path) -> None:
    done = call("logits", untold, "--tokens", listed(TOKENS), "--out", tmp_path / "x.npy", "--kv-type", "f32")
    assert (done.code, done.out, done.err) == (0, "", "")
    found = np.load(tmp_path / "x.npy")
    assert (found.dtype, found.shape) == (np.float32, (75, VOCABULARY))
    assert np.abs(found - Reference(untold).logits(TOKENS)).max() < 2e-5


@pytest.mark.parametrize("options", [["--rows", "1"], ["--rows", "7"], ["--rows", "256"], ["--threads", "1"]], ids=str)
def test_the_bytes_do_not_depend_on_how_they_were_made(
    call: Call, untold: Path, tmp_path: Path, options: list[str]
) -> None:
    usual, other = tmp_path / "usual.npy", tmp_path / "other.npy"
    assert call("logits", untold, "--tokens", listed(TOKENS), "--out", usual).code == 0
    assert call("logits", untold, "--tokens", listed(TOKENS), "--out", other, *options).code == 0
    assert usual.read_bytes() == other.read_bytes()


def test_a_text_is_its_tokens(call: Call, tmp_path: Path) -> None:
    model = write_talking(tmp_path / "talking.gguf")
    assert call("logits", model, "--text", "hello </s>", "--out", tmp_path / "text.npy").code == 0
    assert call("logits", model, "--text", "hello </s>", "--special", "--out", tmp_path / "marks.npy").code == 0
    assert [len(np.load(tmp_path / name)) for name in ("text.npy", "marks.npy")] == [6, 3]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--tokens", "1,,2"], "--tokens: ''"),
        (["--tokens", "1,-2"], "--tokens: '-2'"),
        (["--tokens", "1,2.0"], "--tokens: '2.0'"),
        (["--tokens", "1,\u0664"], "--tokens"),
        (["--tokens", f"1,{VOCABULARY}"], f"--tokens: '{VOCABULARY}'"),
        (["--tokens", "9" * 5000], "--tokens: '9999"),
        ([], "one of --tokens and --text"),
        (["--tokens", "1", "--text", "x"], "one of --tokens and --text"),
        (["--text", "x"], "carries no tokenizer"),
        (["--tokens", ",".join(["1"] * 4097)], "4097"),
        (["--tokens", "1", "--rows", "0"], "--rows"),
        (["--tokens", "1", "--rows", "257"], "--rows"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_input_that_cannot_be_used_is_named_and_leaves_nothing(
    call: Call, untold: Path, tmp_path: Path, options: list[str], fault: str
) -> None:
    done = call("logits", untold, "--out", tmp_path / "x.npy", *options)
    assert done.code == 2
    assert fault in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["", "missing/x.npy"])
def test_a_place_that_cannot_be_written_is_named_before_any_work(
    call: Call, untold: Path, tmp_path: Path, place: str
) -> None:
    done = call("logits", untold, "--tokens", "1", "--out", tmp_path / place)
    assert done.code == 2
    assert done.err.startswith("decodepool logits: --out: ") or "--out: " in done.err


def test_an_array_that_was_there_stays_until_the_new_one_is_whole(call: Call, untold: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    out.write_bytes(b"old")
    assert call("logits", untold, "--tokens", "999", "--out", out).code == 2
    assert out.read_bytes() == b"old"
    assert call("logits", untold, "--tokens", "1", "--out", out).code == 0
    assert np.load(out).shape == (1, VOCABULARY)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupt_leaves_no_half_of_an_array(untold: Path, tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "place"
    place.mkdir()
    words = ("logits", untold, "--rows", 1, "--tokens", listed([1] * 4000), "--out", place / "x.npy")
    running = Running(tmp_path, *words)
    until(lambda: list(place.iterdir()))
    running.signal(number)
    assert running.end() == 130
    assert not list(place.iterdir())
    assert running.err.read_text() == ""
