from __future__ import annotations

import re
from pathlib import Path

import pytest
from decodepool_sizing.devices import PROCESS_BASE_BYTES
from decodepool_sizing.gpu_names import find_gpu
from decodepool_sizing.workspace import MAX_SESSIONS

from tests.cli.conftest import Call
from tests.sizing.gguf_bytes import tiny

PARTS = ("weight_bytes", "workspace_bytes", "reserve_bytes", "cache_bytes", "unused_bytes")
BASE_MIB = PROCESS_BASE_BYTES >> 20


def test_a_plan_is_told_as_json(call: Call, model: Path) -> None:
    done = call("plan", model, "--context", 256, "--memory", "4GiB", "--json")
    assert (done.code, done.err) == (0, "")
    seen = done.json
    assert seen["fits"]
    assert seen["usable_bytes"] == (4 << 30) - PROCESS_BASE_BYTES
    assert seen["reserve_bytes"] == seen["sessions"] * seen["session_bytes"]
    assert sum(seen[part] for part in PARTS) == seen["usable_bytes"]
    assert (seen["sessions"], seen["limited_by"]) == (MAX_SESSIONS, "sessions of a worker")
    assert seen["supported"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--memory", f"{BASE_MIB + 3}MiB"], "limited by memory: one more session needs"),
        (["--memory", "4GiB", "--sessions", "3"], "limited by the sessions asked for: 3"),
        (["--memory", "4GiB"], f"limited by the sessions of a worker: {MAX_SESSIONS} at most"),
        (["--memory", "4GiB", "--cache-reserve", "1MiB"], "limited by the cache reserve: one more session needs"),
        (["--gpu", "h200"], "on H200"),
        ([], "on this machine"),
    ],
    ids=["memory", "asked", "rows", "reserve", "gpu", "this machine"],
)
def test_a_plan_is_told_in_tables_that_fit_80_columns(call: Call, model: Path, options: list[str], text: str) -> None:
    done = call("plan", model, "--context", 256, *options)
    assert (done.code, done.err) == (0, "")
    assert text in done.out
    assert f"\n{model.name}: tiny on " in done.out
    assert all(name in done.out for name in ("weights", "workspace", "sessions", "cache", "usable"))
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_one_token_is_one(call: Call, model: Path) -> None:
    assert "1 session of 1 token\n" in call("plan", model, "--context", 1, "--sessions", 1, "--memory", "1GiB").out


def test_a_gpu_is_planned_by_its_row(call: Call, model: Path) -> None:
    seen = call("plan", model, "--context", 64, "--gpu", "L4", "--json").json
    assert seen["usable_bytes"] == find_gpu("L4").usable_bytes
    assert seen["device"] == {"kind": "cuda", "name": "L4"}


@pytest.mark.parametrize("name", ["l4", "NVIDIA-L4-SHARED"])
def test_a_part_of_a_gpu_may_be_planned(call: Call, model: Path, name: str) -> None:
    done = call("plan", model, "--context", 64, "--gpu", name, "--memory", "6GiB", "--json")
    seen, whole = done.json, call("plan", model, "--context", 64, "--gpu", "l4", "--json").json
    assert done.code == 0
    assert (seen["device"]["name"], seen["memory_bytes"]) == ("6.0 GiB of L4", 6 << 30)
    assert seen["workspace_bytes"] == whole["workspace_bytes"]


def test_memory_may_be_a_gpus(call: Call, model: Path) -> None:
    cpu, gpu = (
        call("plan", model, "--context", 64, "--memory", "80GiB", "--device", kind, "--json").json["usable_bytes"]
        for kind in ("cpu", "cuda")
    )
    assert gpu < cpu
    assert "on a GPU with 80.0 GiB" in call("plan", model, "--context", 64, "--memory", "80GiB", "--device", "cuda").out


def test_where_nothing_fits_the_numbers_are_told(call: Call, model: Path) -> None:
    done = call("plan", model, "--context", 256, "--memory", "64MiB", "--json")
    assert (done.code, done.err) == (1, "")
    assert done.json["fits"] is False
    assert done.json["needed_bytes"] > done.json["available_bytes"] == 0
    assert done.json["advice"]
    assert (done.json["supported"], done.json["refusals"]) == (True, [])
    plain = call("plan", model, "--context", 256, "--memory", "64MiB")
    assert (plain.code, plain.out) == (1, "")
    assert plain.err.startswith("decodepool: 1 session of 256 tokens needs ")
    assert plain.err.count("\n") == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_memory_that_would_do_can_be_typed_back(call: Call, model: Path, device: str) -> None:
    plan = ("plan", model, "--context", 256, "--device", device, "--memory")
    (mebibytes,) = re.findall(r": (\d+)MiB of memory", call(*plan, "64MiB").err)
    assert "1 session of 256 tokens" in call(*plan, f"{mebibytes}MiB", "--sessions", 1).out
    assert call(*plan, f"{int(mebibytes) - 1}MiB").code == 1


BAD_USAGE = {
    "no context": (["--memory", "4GiB"], "Missing option '--context'"),
    "context of zero": (["--context", "0"], "greater than or equal to 1"),
    "context below zero": (["--context", "-1"], "greater than or equal to 1"),
    "context in e": (["--context", "1e3"], "valid integer"),
    "context of the next model": (["--context", "257"], "a context of 257 tokens, but the model's own is 256"),
    "context past all": (["--context", str(10**12)], f"a context of {10**12} tokens"),
    "sessions in part": (["--context", "64", "--sessions", "1.5"], "valid integer"),
    "no sessions": (["--context", "64", "--sessions", "0"], "greater than or equal to 1"),
    "sessions past rows": (["--context", "64", "--sessions", "257"], "257 sessions: a worker holds 1 to 256"),
    "potatoes": (["--context", "64", "--memory", "4 potatoes"], "--memory: '4 potatoes' is not an amount"),
    "a reserve of nothing": (["--context", "64", "--cache-reserve", "0"], "--cache-reserve: '0' is not a whole number"),
    "no unit": (
        ["--context", "64", "--memory", "16"],
        "16 bytes is less than anything needs; for 16 GiB, say --memory 16GiB",
    ),
    "a reserve without a unit": (["--context", "64", "--cache-reserve", "4"], "say --cache-reserve 4GiB"),
    "more than the GPU has": (
        ["--context", "64", "--gpu", "l4", "--memory", str((23_034 << 20) + 1)],
        "--memory: 24152899585 bytes (22.5 GiB), but L4 has 24152899584 bytes (22.5 GiB)",
    ),
    "a share of nobody knows what": (
        ["--context", "64", "--gpu", "NVIDIA-L4-SHARED"],
        "--gpu: NVIDIA-L4-SHARED is the label of GPUs that pods share: give a pod's part with --memory, such as 6GiB",
    ),
    "a GPU that is a CPU": (
        ["--context", "64", "--gpu", "h200", "--device", "cpu"],
        "--gpu and --device cpu: a GPU is",
    ),
    "some GPU": (
        ["--context", "64", "--device", "cuda"],
        "--device cuda: give the GPU too, with --gpu, such as h200, or its --memory",
    ),
    "an unknown GPU": (["--context", "64", "--gpu", "h2000"], "--gpu: no GPU is called 'h2000'; did you mean"),
    "an unknown type": (["--context", "64", "--kv-type", "q17"], "--kv-type"),
    "a type too wide": (["--context", "64", "--kv-type", "q8_0"], "cannot be kept as q8_0; possible are f16, f32"),
}


@pytest.mark.parametrize("name", BAD_USAGE)
def test_bad_usage_is_one_line(call: Call, model: Path, name: str) -> None:
    words, text = BAD_USAGE[name]
    done = call("plan", model, *words)
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert done.err.count("\n") == 1


def test_a_model_that_is_not_run_is_planned_all_the_same_and_has_failed(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    path.write_bytes(tiny({"llama.rope.dimension_count": 8}))
    done = call("plan", path, "--context", 64, "--memory", "4GiB", "--json")
    assert (done.code, done.err, done.json["fits"], done.json["supported"]) == (1, "", True, False)
    plain = call("plan", path, "--context", 64, "--memory", "4GiB")
    assert (plain.code, plain.err) == (1, "")
    assert "Not run: rope turns" in plain.out


def test_where_neither_fits_both_are_told(call: Call, model: Path) -> None:
    words = ("plan", model, "--context", 64, "--gpu", "t4", "--memory", "64MiB", "--json")
    done = call(*words)
    assert (done.code, done.json["fits"], done.json["supported"]) == (1, False, False)
    assert done.json["refusals"][0].startswith("compute capability 7.5: ")
    plain = call(*words[:-1])
    assert (plain.code, plain.out, plain.err.count("\n")) == (1, "", 1)
    assert "64.0 MiB of T4 has 0 bytes" in plain.err
    assert "; not run: compute capability 7.5: " in plain.err


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (["--gpu", "h200", "--device", "cuda"], []),
        (["--gpu", "h200", "--kv-type", "f32"], ["keys and values as f32: the engine keeps f16 or q8_0 on a GPU"]),
        (["--memory", "4GiB", "--device", "cuda", "--kv-type", "f32"], ["keys and values as f32: "]),
        (["--memory", "4GiB", "--kv-type", "f32"], []),
        (["--gpu", "t4"], ["compute capability 7.5: the CUDA engine runs on 8.0 and later ones"]),
        (["--gpu", "v100", "--kv-type", "f32"], ["compute capability 7.0: ", "keys and values as f32: "]),
        (["--gpu", "a100"], []),
        (["--gpu", "b300"], []),
    ],
    ids=" ".join,
)
def test_what_the_devices_engine_does_not_run_is_told(
    call: Call, model: Path, options: list[str], reasons: list[str]
) -> None:
    done = call("plan", model, "--context", 64, *options, "--json")
    assert (done.code, done.err) == (1 if reasons else 0, "")
    assert done.json["supported"] is (not reasons)
    assert len(done.json["refusals"]) == len(reasons)
    assert all(told.startswith(reason) for told, reason in zip(done.json["refusals"], reasons, strict=True))
    plain = call("plan", model, "--context", 64, *options)
    shown = " ".join(plain.out.split())
    assert plain.code == done.code
    assert all(f"Not run: {told}" in shown for told in done.json["refusals"])


def test_what_a_gpu_does_not_run_of_a_shape_is_told(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    path.write_bytes(tiny({"llama.attention.key_length": 256, "llama.attention.value_length": 256}))
    words = "heads of 256 dimensions as f16: "
    told = {
        gpu: [
            line
            for line in call("plan", path, "--context", 64, "--gpu", gpu, "--json").json["refusals"]
            if words in line
        ]
        for gpu in ("l4", "h200")
    }
    assert (len(told["l4"]), told["h200"]) == (1, [])


def test_an_unknown_architecture_has_no_plan(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    path.write_bytes(tiny({"general.architecture": "mamba"}))
    done = call("plan", path, "--context", 64, "--memory", "4GiB")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "'mamba' is not known" in done.err
    told = call("plan", path, "--context", 64, "--memory", "4GiB", "--json")
    assert (told.code, told.err, told.json["fits"], told.json["supported"]) == (1, "", None, False)
    assert ["'mamba' is not known" in line for line in told.json["refusals"]] == [True]
