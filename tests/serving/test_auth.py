from __future__ import annotations

from pathlib import Path

import pytest
from decodepool_sizing.api_keys import ApiKeys, KeyFileError
from decodepool_worker.serving import auth
from decodepool_worker.serving.auth import is_from_here

from tests.serving.live_server import live_worker


def test_keys_are_lines_and_comments_are_not(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\n\n  one  \ntwo\n   # three\n")
    assert ApiKeys.from_file(path).keys == (b"one", b"two")


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff\xfe"])
def test_a_file_without_a_key_is_refused_rather_than_left_open(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match="keys"):
        ApiKeys.from_file(path)


def test_a_file_that_changes_changes_the_keys_and_one_without_a_key_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n")
    keys = ApiKeys.from_file(path)
    path.write_text("two\n")
    keys.reread()
    assert keys.keys == (b"two",)
    for content in ("", "# nothing\n"):
        path.write_text(content)
        keys.reread()
        assert keys.keys == (b"two",)
    path.unlink()
    keys.reread()
    assert keys.keys == (b"two",)


@pytest.mark.parametrize(
    ("peer", "here", "answer"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("10.1.0.7", "10.1.0.7", True),
        ("10.1.0.8", "10.1.0.7", False),
        ("fe80::1%eth0", "fe80::2", False),
    ],
)
def test_who_is_on_this_machine_or_in_this_pod_is_from_here(peer: str, here: str, answer: bool) -> None:
    assert is_from_here(peer, here) is answer


def test_a_worker_for_local_clients_serves_them() -> None:
    with live_worker(local_clients=True) as live:
        assert live.call("POST", "/v1/sessions", {"prompt": "A"}).status == 201


def test_a_worker_for_local_clients_tells_others_its_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "is_from_here", lambda peer, here: False)
    with live_worker(local_clients=True) as live:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/capacity"):
            assert live.call("GET", path).status == 200, path
        for method, path in (("POST", "/v1/sessions"), ("GET", "/v1/sessions"), ("GET", "/v1/live"), ("GET", "/x")):
            answer = live.call(method, path)
            assert (answer.status, answer.json["error"]["code"]) == (403, "not_local"), path


def test_a_worker_for_local_clients_tells_its_counts_without_its_key_and_nothing_else() -> None:
    with live_worker(local_clients=True, keys=(b"sesame",)) as live:
        assert live.call("GET", "/v1/capacity").status == 200
        assert live.call("GET", "/v1/models").status == 401
    with live_worker(keys=(b"sesame",)) as live:
        assert live.call("GET", "/v1/capacity").status == 401
