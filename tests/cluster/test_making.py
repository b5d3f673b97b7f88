"""What a cluster leaves behind: nothing, and nothing half done that nobody may clean up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from decodepool_cluster import making


def test_the_mark_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "nodes").mkdir(parents=True)
    (home / "mark").touch()
    (home / "a-file").touch()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            making.remove(home, last="mark")
    assert (home / "mark").exists(), "who comes next sees whose folder it is"
    making.remove(home, last="mark")
    assert not home.exists()
    making.remove(home, last="mark")
