from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.models import write_talking, write_untold
from tests.cli.processes import Running

BROKEN = "{% for m in messages %}{{ raise_exception('no') }}{% endfor %}"


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talking(tmp_path_factory.mktemp("models") / "talking.gguf")


def test_it_answers_on_stdout_and_says_how_fast_on_stderr(call: Call, talking: Path) -> None:
    done = call("generate", talking, "--prompt", "hello", "-n", 20)
    assert done.code == 0
    assert done.out.endswith("\n")
    assert "20 drawn at " in done.err
    assert "tok/s" in done.err
    assert done.err.count("\n") == 1


def test_the_same_seed_says_the_same_and_another_does_not(call: Call, talking: Path) -> None:
    words = ("generate", talking, "--prompt", "hello", "-n", 30, "--temperature", 2, "--quiet", "--seed")
    first, again, other = (call(*words, seed) for seed in (1, 1, 2))
    assert first.err == ""
    assert first.out == again.out != other.out


def test_a_seed_that_was_not_given_is_told_and_repeats_the_answer(call: Call, talking: Path) -> None:
    words = ("generate", talking, "--prompt", "hello", "-n", 30, "--temperature", 2)
    first = call(*words)
    seed = first.err.split("seed ")[1].split(",")[0]
    assert call(*words, "--seed", seed).out == first.out


def test_bytes_that_are_no_text_come_out_as_replacement_characters(call: Call, talking: Path) -> None:
    done = call("generate", talking, "--prompt", "hello", "-n", 60, "--temperature", 3, "--seed", 5)
    assert "\ufffd" in done.out
    done.out.encode("utf-8")  # no half of a character


def test_a_reader_that_leaves_ends_it_without_a_word(talking: Path) -> None:
    command = [sys.executable, "-m", "decodepool_cli", "generate", str(talking), "--prompt", "hello", "-n", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 1


def test_the_template_makes_a_difference_and_raw_goes_without(call: Call, talking: Path, tmp_path: Path) -> None:
    plain = write_talking(tmp_path / "plain.gguf", None)
    counted = {
        "template": call("generate", talking, "--prompt", "hello", "-n", 1).err,
        "raw": call("generate", talking, "--prompt", "hello", "--raw", "-n", 1).err,
        "no template": call("generate", plain, "--prompt", "hello", "-n", 1).err,
    }
    prompts = {name: int(said.split(" ")[0]) for name, said in counted.items()}
    assert prompts["raw"] == prompts["no template"] == 1
    assert prompts["template"] > 10


def test_marks_in_a_prompt_are_text_unless_it_is_said_otherwise(call: Call, talking: Path) -> None:
    words = ("generate", talking, "--raw", "--prompt", "hello</s>", "-n", 1)
    assert call(*words).err.startswith("5 tokens")
    assert call(*words, "--special").err.startswith("2 tokens")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--temperature", "nan"], "--temperature: nan"),
        (["--temperature", "-1"], "--temperature: -1.0"),
        (["--top-p", "1.5"], "--top-p: 1.5"),
        (["--min-p", "inf"], "--min-p: inf"),
        (["--top-k", "-3"], "--top-k: -3"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**64)], "--seed"),
        (["-n", "-1"], "-n"),
        (["--context", "5"], "the context is 5"),
        (["--context", "0"], "--context"),
        (["--context", "1000000"], "1000000"),
        (["--raw", "--system", "be brief"], "--system"),
        (["--threads", "0"], "--threads"),
        (["--kv-type", "q7"], "--kv-type"),
        (["--kv-type", "q8_0"], "q8_0"),
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_named(call: Call, talking: Path, options: list[str], fault: str) -> None:
    done = call("generate", talking, "--prompt", "hello", *options)
    assert done.code == 2
    assert done.out == ""
    assert fault in done.err
    assert done.err.count("\n") == 1


def test_a_model_without_a_tokenizer_is_refused(call: Call, tmp_path: Path) -> None:
    done = call("generate", write_untold(tmp_path / "untold.gguf"), "--prompt", "hello")
    assert done.code == 2
    assert "carries no tokenizer" in done.err


def test_a_broken_template_is_told_with_what_helps(call: Call, tmp_path: Path) -> None:
    model = write_talking(tmp_path / "broken.gguf", BROKEN)
    done = call("generate", model, "--prompt", "hello")
    assert done.code == 2
    assert "chat template: no" in done.err
    assert "--raw" in done.err
    assert call("generate", model, "--prompt", "hello", "--raw", "-n", 2).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 15], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_it_where_it_is(talking: Path, tmp_path: Path, number: int) -> None:
    words = ("generate", talking, "--prompt", "hello", "-n", 3900, "--temperature", 2, "--min-p", 0.5)
    running = Running(tmp_path, *words)
    try:
        running.says("")
        from_the_first_text(running)
        running.signal(number)
        assert running.end() == 130
        assert "cancelled" in running.err.read_text()
        assert "Traceback" not in running.err.read_text()
    finally:
        running.process.kill()
        running.process.wait()


def from_the_first_text(running: Running) -> None:
    """Wait until something was said."""
    while not running.out.read_text(errors="replace"):
        assert running.process.poll() is None
