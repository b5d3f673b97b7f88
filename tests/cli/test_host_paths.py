from __future__ import annotations

from pathlib import Path

import pytest
from decodepool_cli.faults import Fault
from decodepool_cli.host_paths import parse_maps, path_here


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder here, with `models/m.gguf` and `other/m.gguf` in it."""
    for name in ("models", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.gguf").touch()
    return tmp_path


def test_a_nodes_folder_is_one_on_this_machine(here: Path) -> None:
    maps = parse_maps([f"/var/lib={here}"])
    assert path_here("/var/lib/models/m.gguf", maps) == here / "models" / "m.gguf"


def test_the_longest_map_that_fits_is_used(here: Path) -> None:
    maps = parse_maps([f"/var/lib={here}", f"/var/lib/models={here / 'other'}", "/var/li=/nowhere"])
    assert path_here("/var/lib/models/m.gguf", maps) == here / "other" / "m.gguf"


def test_without_a_map_the_path_is_this_machines_own(here: Path) -> None:
    assert path_here(f"{here}/models/m.gguf", []) == here / "models" / "m.gguf"


def test_a_tilde_is_the_users_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert path_here("/srv/m.gguf", parse_maps(["/srv=~/models"])) == here / "models" / "m.gguf"


@pytest.mark.parametrize("text", ["/var/lib", "/var/lib=", "=x", "var/lib=x", ""])
def test_a_map_that_makes_no_sense_is_named(text: str) -> None:
    with pytest.raises(Fault, match="--map: ") as fault:
        parse_maps([text])
    assert fault.value.exit_code == 2


def test_a_file_that_is_not_here_is_named_with_what_helps() -> None:
    with pytest.raises(Fault, match=r"spec.model.source.hostPath.path: /no/m.gguf does not exist; --map /no=FOLDER"):
        path_here("/no/m.gguf", [])
