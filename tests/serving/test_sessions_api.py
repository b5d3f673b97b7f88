from __future__ import annotations

from tests.serving.byte_model import lone_tokens
from tests.serving.live_server import Live


def test_a_session_says_what_it_was_given(live: Live) -> None:
    made = live.post("/v1/sessions", {"tokens": [65, 32], "seed": 2**64 - 1, "context_tokens": 100}, 201)
    assert (made["length"], made["context_tokens"], made["seed"]) == (2, 100, 2**64 - 1)
    assert made["system_fingerprint"] == "fp-bytes"
    assert live.get(f"/v1/sessions/{made['id']}")["id"] == made["id"]


def test_a_session_without_a_seed_is_told_which_it_got(live: Live) -> None:
    seeds = {live.post("/v1/sessions", {"tokens": [65]}, 201)["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_a_whole_decode_equals_the_lone_session(live: Live) -> None:
    session = live.create("A B C")
    answer = live.decode(session, max_tokens=6)
    assert answer["tokens"] == lone_tokens(list(b"A B C"), 6)
    assert answer["text"] == " D E F"
    assert (answer["position"], answer["length"], answer["finish_reason"]) == (5, 11, "length")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_a_stream_tells_position_token_and_text_then_done(live: Live) -> None:
    seen = live.stream(live.create("A B C"), max_tokens=3)
    assert [each["event"] for each in seen] == ["token", "token", "token", "done"]
    assert [int(each["id"]) for each in seen[:-1]] == [5, 6, 7]
    assert seen[0]["data"] == {"position": 5, "token": 32, "text": " "}
    assert seen[-1]["data"]["finish_reason"] == "length"
    assert seen[-1]["data"]["length"] == 8
