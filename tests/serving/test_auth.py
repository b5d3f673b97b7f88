from __future__ import annotations

from pathlib import Path

import pytest
from decodepool_worker.serving.auth import ApiKeys, KeyFileError


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
