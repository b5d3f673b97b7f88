"""API keys: asked for at the gateway, passed on to the workers, and changed without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from decodepool_gateway.routes import ROUTES
from decodepool_sizing.api_keys import ApiKeys, KeyFileError

from tests.gateway.processes import PoolProcess, running_pool, until

pytestmark = pytest.mark.slow  # a pool of its own

PUBLIC = [route.path for route in ROUTES if route.public]
TELLS_NOTHING = {
    *("/", "/live/page.css", "/live/page.js", "/live/pool.css", "/live/pool.js"),
    *("/healthz", "/readyz", "/metrics", "/openapi.json"),
}
"""What may be public: it says nothing of sessions."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("# of the team\nold\n")
    return path


@pytest.fixture(scope="module")
def locked(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolProcess]:
    """A pool whose workers were started with the key `old`."""
    option = f"--api-keys={keys}"
    with running_pool(tmp_path_factory.mktemp("pool"), ["a"], each=[option], options=[option]) as pool:
        yield pool


def status(pool: PoolProcess, path: str, key: str | None) -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return pool.call("GET", path, **headers).status


def test_what_says_nothing_of_sessions_and_nothing_else_is_public() -> None:
    assert set(PUBLIC) == TELLS_NOTHING


@pytest.mark.parametrize("path", PUBLIC)
def test_what_says_nothing_of_sessions_is_open(locked: PoolProcess, path: str) -> None:
    assert status(locked, path, None) == 200


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/models", "/v1/capacity", "/v1/live", "/v1/sessions/s-x", "/no"])
@pytest.mark.parametrize("key", [None, "", "other", "olds"])
def test_the_rest_asks_for_a_key(locked: PoolProcess, path: str, key: str | None) -> None:
    answer = locked.call("GET", path, **({} if key is None else {"Authorization": f"Bearer {key}"}))
    assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/models", "/v1/capacity", "/v1/live"])
def test_a_key_opens_gateway_and_workers(locked: PoolProcess, path: str) -> None:
    assert status(locked, path, "old") == 200


def test_keys_change_at_gateway_and_workers_without_a_restart(locked: PoolProcess, keys: Path) -> None:
    new = keys.with_name("next")
    new.write_text("new\n")
    new.rename(keys)  # as a mounted secret changes: at once
    until(lambda: status(locked, "/v1/models", "new") == 200, 10)  # a worker answers this one
    assert status(locked, "/v1/models", "old") == 401
    until(lambda: locked.ready_workers == 1, 10)
    keys.write_text("# nothing\n")
    until(lambda: "no key in it" in locked.log.read_text(), 10)
    assert status(locked, "/v1/capacity", None) == 401, "an empty file opens nothing"
    assert status(locked, "/v1/capacity", "new") == 200


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff\xfe"])
def test_a_file_without_a_key_is_refused_rather_than_left_open(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match="keys"):
        ApiKeys.from_file(path)
