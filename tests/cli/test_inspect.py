from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.sizing.gguf_bytes import tiny
from tests.sizing.test_ranged_http import served


def test_a_file_is_told_as_json(call: Call, model: Path) -> None:
    done = call("inspect", model, "--json")
    assert (done.code, done.err) == (0, "")
    seen = done.json
    assert (seen["architecture"], seen["supported"], seen["refusals"]) == ("llama", True, [])
    assert seen["shape"] | {"block_count": 2, "head_count": 4, "head_count_kv": 2, "window": None} == seen["shape"]
    size = model.stat().st_size
    assert seen["tensors"]["by_type"] == {"F32": {"count": 21, "bytes": seen["tensors"]["bytes"]}}
    assert 0 < seen["tensors"]["bytes"] < size == seen["file_bytes"]
    assert seen["tokenizer"] == {"model": "gpt2", "pre": None, "vocabulary_size": 40, "chat_template": False}
    assert seen["kv_bytes_per_token"] == {"f16": 2 * 2 * 2 * 16 * 2, "f32": 2 * 2 * 2 * 16 * 4}
    assert seen["fixed_state_bytes"] == 0


def test_a_file_is_told_in_tables_that_fit_80_columns(call: Call, model: Path) -> None:
    done = call("inspect", model)
    assert done.code == 0
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert done.out.startswith(f"{model.name}: tiny\n")
    for text in ("llama", "2 of width 64", "4 query, 2 key-value, of 16", "F32", "each token", "256 B"):
        assert text in done.out
    assert "The engine runs this model." in done.out


def write(folder: Path, *args: Any, **changes: Any) -> Path:
    path = folder / "changed.gguf"
    path.write_bytes(tiny(*args, **changes))
    return path


def test_a_model_that_is_not_run_says_why(call: Call, tmp_path: Path) -> None:
    path = write(tmp_path, {"llama.rope.dimension_count": 8})
    seen = call("inspect", path, "--json").json
    assert not seen["supported"]
    assert seen["refusals"] == ["rope turns 8 of 16 dimensions: the engine does not run this yet"]
    assert "Not run: rope turns 8 of 16 dimensions" in call("inspect", path).out


def test_an_unknown_architecture_still_tells_its_tensors(call: Call, tmp_path: Path) -> None:
    path = write(tmp_path, {"general.architecture": "mamba"})
    done = call("inspect", path, "--json")
    assert done.code == 0
    assert (done.json["shape"], done.json["supported"]) == (None, False)
    assert done.json["tensors"]["count"] == 21
    assert "Not run:" in call("inspect", path).out


def test_a_name_is_no_markup(call: Call, tmp_path: Path) -> None:
    assert "[bold]x[/nope]" in call("inspect", write(tmp_path, {"general.name": "[bold]x[/nope]"})).out


BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "none.gguf", "no such file or directory"),
    "a directory": (lambda folder: folder, "this is a directory"),
    "cut": (lambda folder: write(folder, edit={"blk.1.ffn_down.weight": {"data": b""}}), "but the file ends at"),
    "no key": (lambda folder: write(folder, {"llama.block_count": None}), "llama.block_count: missing"),
    "no matrix": (lambda folder: write(folder, edit={"token_embd.weight": None}), "tensor token_embd.weight: missing"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["tables", "json"])
def test_a_broken_file_is_one_line_that_names_it(call: Call, tmp_path: Path, name: str, json: list[str]) -> None:
    make, text = BROKEN[name]
    path = make(tmp_path)
    done = call("inspect", path, *json)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"decodepool: {path}: ")
    assert text in done.err
    assert done.err.count("\n") == 1


def test_a_url_is_inspected_by_its_header_alone(call: Call) -> None:
    with served(tiny() + bytes(3 << 20)) as server:
        done = call("inspect", server.url, "--json", "--header", "Authorization: Bearer x")
        assert done.json["architecture"] == "llama"
        assert len(server.ranges) == 1
        assert server.tokens == ["Bearer x"]


def test_a_header_option_that_is_none_is_bad_usage(call: Call, model: Path) -> None:
    done = call("inspect", model, "--header", "nonsense")
    assert (done.code, done.err) == (2, "decodepool: --header: expected 'NAME: VALUE'\n")
