from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from decodepool_worker.engine.rows import Sampling
from decodepool_worker.serving.prompts import Prompts

from tests.serving.byte_model import MATRIX_ROWS, NAN_TOKEN, lone_tokens
from tests.serving.live_server import Live, live_worker


def test_a_session_says_what_it_was_given(live: Live) -> None:
    made = live.post("/v1/sessions", {"tokens": [65, 32], "seed": 2**64 - 1, "context_tokens": 100}, 201)
    assert (made["length"], made["context_tokens"], made["seed"]) == (2, 100, 2**64 - 1)
    assert made["system_fingerprint"] == "fp-bytes"
    assert live.get(f"/v1/sessions/{made['id']}")["id"] == made["id"]


def test_a_session_says_when_it_was_last_used(live: Live) -> None:
    session = live.create("A B C")

    def told(name: str) -> Any:
        (listed,) = (each for each in live.get("/v1/sessions")["data"] if each["id"] == session)
        assert listed == live.get(f"/v1/sessions/{session}")
        return listed[name]

    live.until(lambda: live.get(f"/v1/sessions/{session}")["state"] == "idle")
    first = told("last_used")
    assert told("created") <= first <= time.time()
    live.until(lambda: time.time() >= first + 3)
    assert abs(told("last_used") - first) <= 1, "a second may end between two clocks"
    live.decode(session, max_tokens=1)
    assert told("last_used") > first + 1


def test_a_session_without_a_seed_is_told_which_it_got(live: Live) -> None:
    seeds = {live.post("/v1/sessions", {"tokens": [65]}, 201)["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_a_whole_decode_equals_the_lone_session(live: Live) -> None:
    answer = live.decode(live.create("A B C"), max_tokens=6)
    assert answer["tokens"] == lone_tokens(list(b"A B C"), 6)
    assert answer["text"] == " D E F"
    assert (answer["position"], answer["length"], answer["finish_reason"]) == (5, 11, "length")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_a_stream_tells_position_token_and_text_then_done(live: Live) -> None:
    seen = live.stream(live.create("A B C"), max_tokens=3)
    assert [each["event"] for each in seen] == ["token", "token", "token", "done"]
    assert [int(each["id"]) for each in seen[:-1]] == [5, 6, 7]
    assert seen[0]["data"] == {"position": 5, "token": 32, "text": " "}
    assert (seen[-1]["data"]["finish_reason"], seen[-1]["data"]["length"]) == ("length", 8)


def test_a_seeded_stream_does_not_depend_on_how_it_is_cut(live: Live) -> None:
    sampling = {"temperature": 1.5, "top_k": 50}
    session = live.create("A B C", seed=7, **sampling)
    parts = [live.post(f"/v1/sessions/{session}/decode", {"max_tokens": n, "ignore_eos": True}) for n in (5, 1, 14)]
    drawn = [token for part in parts for token in part["tokens"]]
    assert drawn == lone_tokens(list(b"A B C"), 20, seed=7, sampling=Sampling(temperature=1.5, top_k=50))


def test_a_decode_overrides_the_sessions_sampling_for_itself(live: Live) -> None:
    session = live.create("A B C", seed=7, temperature=1.5)
    greedy = live.post(f"/v1/sessions/{session}/decode", {"max_tokens": 4, "temperature": 0})["tokens"]
    assert greedy == lone_tokens(list(b"A B C"), 4)
    after = live.post(f"/v1/sessions/{session}/decode", {"max_tokens": 8, "ignore_eos": True})["tokens"]
    assert after == lone_tokens([*b"A B C", *greedy], 8, seed=7, sampling=Sampling(temperature=1.5))


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("F", " D E "),
        ("E F", " D "),
        (["F", "E F"], " D "),
        ("D E F G", " "),
        ("F X", " D E F G H I"),
        (" D", ""),
        ("歪", " D E F G H I"),
    ],
)
def test_a_stop_ends_the_text_streamed_or_not(live: Live, stop: Any, text: str) -> None:
    whole = live.decode(live.create("A B C"), max_tokens=12, stop=stop)
    seen = live.stream(live.create("A B C"), max_tokens=12, stop=stop)
    streamed = "".join(each["data"]["text"] for each in seen)
    assert whole["text"] == streamed == text
    assert whole["length"] == seen[-1]["data"]["length"] == 5 + len(whole["tokens"])


def test_a_stop_id_ends_the_decode_and_stays_in_the_session(live: Live) -> None:
    session = live.create("A B C")
    answer = live.decode(session, max_tokens=12, stop_token_ids=[ord("E")])
    assert (answer["text"], answer["stop"], answer["finish_reason"]) == (" D ", ord("E"), "stop")
    assert live.get(f"/v1/sessions/{session}/tokens")["tokens"] == list(b"A B C D E")


def test_logprobs_come_where_asked_for(live: Live) -> None:
    answer = live.decode(live.create("A B C"), max_tokens=2, top_logprobs=3)
    for entry in answer["logprobs"]:
        assert len(entry["top"]) == 3
        assert entry["top"][0]["logprob"] == entry["logprob"] <= 0
    assert live.decode(live.create("A"), max_tokens=1)["logprobs"] is None


def test_append_goes_on_from_where_the_session_is(live: Live) -> None:
    session = live.create("A B C")
    live.decode(session, max_tokens=3)
    assert live.post(f"/v1/sessions/{session}/append", {"text": "X "})["length"] == 10
    assert live.decode(session, max_tokens=3)["text"] == "Y Z"


@pytest.mark.parametrize(
    "given", [{"tokens": [65]}, {"text": "X "}, {"messages": [{"role": "user", "content": "More"}]}], ids=str
)
def test_an_append_is_made_once_however_often_it_is_sent(live: Live, given: dict[str, Any]) -> None:
    session = live.create("A B C")
    path, body = f"/v1/sessions/{session}/append", given | {"length": 5}
    length = live.post(path, body)["length"]
    assert length > 5
    fault = live.post(path, body, 409)["error"]
    assert (fault["code"], fault["param"]) == ("length_differs", "length")
    assert fault["message"] == f"length: the session's is {length}, not 5"
    assert live.get(f"/v1/sessions/{session}")["length"] == length


def test_messages_are_refused_where_another_append_came_while_they_were_written(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = live.create("A B C")
    served, written = live.service.served(), Prompts.of_next_messages

    async def overtaken(prompts: Prompts, *given: Any, **more: Any) -> list[int]:
        await served.worker.append(session, [65, 66])
        return await written(prompts, *given, **more)

    monkeypatch.setattr(Prompts, "of_next_messages", overtaken)
    fault = live.post(f"/v1/sessions/{session}/append", {"messages": [{"role": "user", "content": "More"}]}, 409)
    assert fault["error"]["message"] == "length: the session's is 7, not 5"
    assert live.get(f"/v1/sessions/{session}")["length"] == 7


def test_a_fork_goes_on_as_its_parent_would(live: Live) -> None:
    session = live.create("A B C", seed=3)
    live.decode(session, max_tokens=5)
    made = live.post(f"/v1/sessions/{session}/fork", {"at": 7, "n": 2, "seed": 10}, 201)["sessions"]
    assert [(each["length"], each["seed"], each["parent"]) for each in made] == [(7, 10, session), (7, 11, session)]
    assert live.decode(made[0]["id"], max_tokens=3)["tokens"] == lone_tokens(list(b"A B C D"), 3)


@pytest.mark.parametrize("n", [4, 64])
def test_more_forks_than_the_worker_holds_beside_their_parent_are_refused_for_good(live: Live, n: int) -> None:
    session = live.create("A B C")
    answer = live.call("POST", f"/v1/sessions/{session}/fork", {"n": n})
    fault = answer.json["error"]
    assert (answer.status, fault["code"], fault["param"]) == (400, "invalid_value", "n")
    assert "this worker has 4" in fault["message"]
    assert "Retry-After" not in answer.headers
    assert len(live.post(f"/v1/sessions/{session}/fork", {"n": 3}, 201)["sessions"]) == 3


def test_the_context_is_a_hard_end_told_with_both_numbers(live: Live) -> None:
    session = live.create("A B C", context_tokens=10)
    fault = live.post(f"/v1/sessions/{session}/append", {"text": "123456"}, 400)["error"]
    assert fault["code"] == "context_length_exceeded"
    assert "6" in fault["message"]
    assert "10" in fault["message"]
    assert live.get(f"/v1/sessions/{session}")["length"] == 5
    answer = live.decode(session, max_tokens=1000)
    assert (len(answer["tokens"]), answer["finish_reason"]) == (5, "length")
    assert live.decode(session)["tokens"] == []
    assert live.post("/v1/sessions", {"tokens": [1] * 600}, 400)["error"]["code"] == "context_length_exceeded"
    assert (
        live.post("/v1/sessions", {"tokens": [1], "context_tokens": 10**6}, 400)["error"]["param"] == "context_tokens"
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tokens": [MATRIX_ROWS]}, "tokens.0"),
        ({"tokens": [65, 2**31 - 1]}, "tokens.1"),
        ({"tokens": [65, -1]}, "tokens.1"),
        ({"tokens": [65], "logit_bias": {str(MATRIX_ROWS): 1}}, f"logit_bias.{MATRIX_ROWS}"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(live: Live, body: dict[str, Any], param: str) -> None:
    assert live.post("/v1/sessions", body, 400)["error"]["param"] == param
    assert not live.engine.rows, "it reached the engine"


def test_ids_between_the_tokenizers_size_and_the_matrixs_are_tokens(live: Live) -> None:
    session = live.post("/v1/sessions", {"tokens": [65, MATRIX_ROWS - 1]}, 201)["id"]
    assert len(live.decode(session, max_tokens=2, stop_token_ids=[MATRIX_ROWS - 1])["tokens"]) == 2


def test_a_busy_session_is_not_retried_by_clients() -> None:
    with live_worker(step_seconds=0.02) as live:
        session = live.create()
        with live.open_stream(session):
            live.until(lambda: live.busy() == 1)
            answer = live.call("POST", f"/v1/sessions/{session}/decode", {"max_tokens": 1})
        assert answer.status == 409
        assert answer.headers["x-should-retry"] == "false"


def test_a_full_worker_says_when_to_come_again(live: Live) -> None:
    for _ in range(4):
        live.create()
    answer = live.call("POST", "/v1/sessions", {"prompt": "A"})
    assert answer.status == 429
    assert answer.headers["Retry-After"].isdigit()
    assert answer.headers["retry-after-ms"].isdigit()
    assert live.get("/v1/capacity")["sessions"] == {"capacity": 4, "active": 4, "free": 0}


def test_a_closed_session_is_gone_and_an_unknown_one_unknown(live: Live) -> None:
    session = live.create()
    assert live.call("DELETE", f"/v1/sessions/{session}").json["deleted"] is True
    assert live.call("GET", f"/v1/sessions/{session}").status == 410
    assert live.call("DELETE", f"/v1/sessions/{session}").status == 410
    assert live.call("POST", "/v1/sessions/nope/decode", {"max_tokens": 1}).status == 404


def test_closing_a_session_gives_its_stream_a_last_event() -> None:
    with live_worker(step_seconds=0.02) as live:
        session = live.create()
        seen: list[dict[str, Any]] = []
        running = threading.Thread(target=lambda: seen.extend(live.stream(session)))
        running.start()
        live.until(lambda: live.busy() == 1)
        live.call("DELETE", f"/v1/sessions/{session}")
        running.join(5)
        assert seen[-1]["event"] == "error"
        assert "closed" in seen[-1]["data"]["error"]["message"]


def test_cancelling_ends_the_stream_and_keeps_the_session() -> None:
    with live_worker(step_seconds=0.02) as live:
        session = live.create()
        seen: list[dict[str, Any]] = []
        running = threading.Thread(target=lambda: seen.extend(live.stream(session)))
        running.start()
        live.until(lambda: live.busy() == 1)
        assert live.post(f"/v1/sessions/{session}/cancel")["cancelled"] is True
        running.join(5)
        assert seen[-1]["data"]["finish_reason"] == "cancelled"
        length = seen[-1]["data"]["length"]
        tokens = live.get(f"/v1/sessions/{session}/tokens")["tokens"]
        assert len(tokens) == length
        assert live.decode(session, max_tokens=2)["tokens"] == lone_tokens(tokens, 2)


def test_a_session_with_logits_that_are_not_finite_ends_alone(live: Live) -> None:
    sound = live.create("A B C")
    bad = live.post("/v1/sessions", {"tokens": [65, NAN_TOKEN]}, 201)["id"]
    assert live.call("POST", f"/v1/sessions/{bad}/decode", {"max_tokens": 2}).json["error"]["code"] == "decode_failed"
    assert live.call("GET", f"/v1/sessions/{bad}").status == 410
    assert live.decode(sound, max_tokens=3)["tokens"] == lone_tokens(list(b"A B C"), 3)


def test_a_resumed_stream_misses_nothing_and_repeats_nothing() -> None:
    with live_worker(step_seconds=0.005) as live:
        session = live.create("A B C")
        whole = live.stream(live.create("A B C"), max_tokens=40)
        with live.open_stream(session, max_tokens=40) as lines:
            ids = [int(line[4:]) for line, _ in zip(lines, range(40), strict=False) if line.startswith("id: ")]
        live.until(lambda: live.busy() == 0)
        rest = live.stream(session, last_event_id=ids[-1], max_tokens=40)
        assert [*ids, *[int(each["id"]) for each in rest[:-1]]] == list(range(5, 45))
        assert rest[-1]["data"]["finish_reason"] == "length"
        assert [each["data"] for each in rest[:-1]] == [each["data"] for each in whole[len(ids) : -1]]


@pytest.mark.parametrize(
    ("after", "status"), [("x", 400), ("-1", 400), ("99", 409), ("99999999999", 400), ("\u0661", 400)]
)
def test_a_resume_from_nowhere_is_refused(live: Live, after: str, status: int) -> None:
    session = live.create()
    live.decode(session, max_tokens=2)
    answer = live.call(
        "POST", f"/v1/sessions/{session}/decode", {"stream": True}, Last_Event_ID=after.encode().decode("latin-1")
    )
    assert answer.status == status, answer.text


@pytest.mark.parametrize("seed", range(6))
def test_characters_are_never_cut(live: Live, seed: int) -> None:
    hot: dict[str, Any] = {"temperature": 30.0, "max_tokens": 60, "ignore_eos": True}
    whole = live.post(f"/v1/sessions/{live.create('A', seed=seed)}/decode", hot)
    seen = live.stream(live.create("A", seed=seed), **hot)
    assert "".join(each["data"]["text"] for each in seen) == whole["text"]
    assert "\ufffd" in whole["text"], "bytes at random are not all text"
    assert live.post("/detokenize", {"tokens": [65, *whole["tokens"]]})["text"] == "A" + whole["text"]
