from __future__ import annotations

from pathlib import Path

import pytest
from decodepool_sizing.cache_folder import cache_folder


@pytest.mark.parametrize(
    ("chosen", "place"),
    [("/var/cache", "/var/cache/decodepool/models"), ("", "/home/me/.cache/decodepool/models"), (None, None)],
    ids=["chosen", "empty is not chosen", "not chosen"],
)
def test_the_user_chooses_or_it_is_in_the_home(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, place: str | None
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if chosen is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    assert cache_folder("models") == Path(place or "/home/me/.cache/decodepool/models")


def test_the_rule_stands_once_in_the_packages() -> None:
    """The examples have it again: they need Python alone."""
    root = Path(__file__).parents[2]
    sources = [path for room in ("sizing", "kernels", "worker", "cli") for path in (root / room).rglob("*.py")]
    named = [path.name for path in sources if 'environ.get("XDG_CACHE_HOME")' in path.read_text()]
    assert named == ["cache_folder.py"]
