from __future__ import annotations

from pathlib import Path

import pytest
from decodepool_cli.verify import verdict
from decodepool_worker.engine.cpu import CpuEngine
from decodepool_worker.engine.rows import Outcome, Span
from decodepool_worker.verify.gates import GATES, GateResult
from decodepool_worker.verify.long_gate import LONG_GATE

from tests.cli.conftest import Call
from tests.cli.models import write_untold
from tests.cli.processes import Running, is_alive, until
from tests.sizing.gguf_bytes import tiny


@pytest.fixture(scope="module")
def untold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untold(tmp_path_factory.mktemp("models") / "untold.gguf")


@pytest.fixture
def crooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the engine's steps of four rows wrong by a bit."""
    straight = CpuEngine.step

    def step(self: CpuEngine, spans: list[Span]) -> list[Outcome]:
        outcomes = straight(self, spans)
        if len(spans) == 4 and spans[2].slot is not None:
            self.logits(spans[2].slot)[5] += 1e-3
        return outcomes

    monkeypatch.setattr(CpuEngine, "step", step)


@pytest.mark.slow
def test_a_sound_engine_passes_and_every_gate_is_told(
    call: Call, untold: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = call("verify", untold, "--threads", 2, "--json")
    assert done.code == 0
    assert done.json["ok"]
    assert (done.json["model"], done.json["device"], done.json["kv_type"]) == (untold.name, "cpu", "f16")
    assert done.json["machine"]["cores"] >= 1
    names = [gate["name"] for gate in done.json["gates"]]
    assert names == [*(gate.name for gate in GATES), LONG_GATE, "1 thread", "3 threads", "fresh process"]
    assert all(gate["equal"] and gate["rows"] > 0 and gate["bytes"] > 0 for gate in done.json["gates"])
    assert not [record for record in caplog.records if record.name.startswith("decodepool_worker.sessions")]


def test_the_first_difference_ends_it_and_is_named(call: Call, untold: Path, crooked: None) -> None:
    done = call("verify", untold, "--json")
    assert done.code == 1
    assert not done.json["ok"]
    assert [gate["equal"] for gate in done.json["gates"]] == [True, True, False]
    assert "steps of 4 rows: row 2 of 4, after " in done.err
    assert "logit 5 is " in done.err


def test_people_get_a_table(call: Call, untold: Path, crooked: None) -> None:
    done = call("verify", untold)
    assert done.code == 1
    assert "steps of 2 rows" in done.out
    assert "different" in done.out
    assert "all equal" not in done.out
    assert done.out.endswith("\n"), "a line that is piped is whole"


def test_people_get_a_verdict_at_the_end() -> None:
    assert verdict([GateResult("a", 2, 1000, None), GateResult("b", 3, 500, None)]) == "2 gates, 1,500 bytes: all equal"


def test_a_model_whose_context_is_too_short_for_the_gates_is_refused(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(tiny({"llama.context_length": 100}))
    done = call("verify", path)
    assert done.code == 2
    assert "576" in done.err
    assert "100" in done.err


@pytest.mark.slow
def test_an_end_asked_for_takes_the_fresh_process_along(untold: Path, tmp_path: Path) -> None:
    running = Running(tmp_path, "verify", untold, "--threads", 1)
    until(running.children)
    (child,) = running.children()
    running.signal()
    assert running.end() == 130
    until(lambda: not is_alive(child), seconds=5)
    assert running.err.read_text() == ""
