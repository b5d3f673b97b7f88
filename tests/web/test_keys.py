"""A server that follows a key file takes its keys as they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from decodepool_sizing.api_keys import ApiKeys
from decodepool_web import keys as followed


def test_keys_that_are_followed_change_with_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "LOOK_SECONDS", 0.01)
    path = tmp_path / "keys"
    path.write_text("one\n")
    keys = ApiKeys.from_file(path)
    path.write_text("two\n")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(followed.follow(keys), 0.5))
    assert keys.keys == (b"two",)
