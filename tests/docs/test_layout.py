"""`operator/` is to be a folder of this repository and is a module of Python's: no folder may become a package of that
name, nor come before the standard library.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from decodepool_cluster import images

ROOT = Path(__file__).parents[2]
ROOMS = ("sizing", "kernels", "web", "worker", "cli", "gateway", "operator", "bench", "examples", "docs")


def packages(root: Path) -> list[Path]:
    """Rooms and folders of tests that are packages, which none may be."""
    tests = [path.parent for path in (root / "tests").rglob("__init__.py")]
    return [*tests, *(root / room for room in ROOMS if (root / room / "__init__.py").exists())]


def shadowing(folder: Path) -> list[str]:
    """What a folder on `sys.path` would put before the standard library: modules, and folders that are packages."""
    modules = [path.stem for path in folder.glob("*.py")]
    return sorted({*modules, *(path.parent.name for path in folder.glob("*/__init__.py"))} & sys.stdlib_module_names)


def python(program: str, folder: Path) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_no_room_and_no_folder_of_tests_is_a_package() -> None:
    assert packages(ROOT) == []


def test_every_room_of_the_wheel_goes_into_the_images() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    rooms = {package.partition("/")[0] for package in build["targets"]["wheel"]["packages"]}
    copied = re.findall(r"^COPY ([a-z]+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    let_in = re.findall(r"^!([a-z]+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert rooms == set(copied) == set(let_in) == set(images.ROOMS)
    assert rooms | {"cluster"} == set(build["dev-mode-dirs"])


def test_operator_is_the_standard_librarys_in_the_root() -> None:
    assert python("import operator; print(operator.itemgetter.__module__)", ROOT) == "operator"
    assert Path(python("import operator; print(operator.__file__)", ROOT)).parent == Path(subprocess.__file__).parent


def test_what_an_install_puts_on_the_path_shadows_nothing(tmp_path: Path) -> None:
    places = map(Path, python("import sys; print('\\n'.join(sys.path[1:]))", tmp_path).splitlines())
    ours = [place for place in places if place.is_relative_to(ROOT) and place.name != "site-packages"]
    assert ours
    assert {str(place): names for place in ours if (names := shadowing(place))} == {}
    assert ROOT not in ours, "the root holds operator/"


@pytest.mark.parametrize("room", ["operator", "tests/operator"])
def test_the_trap_is_seen(room: str, tmp_path: Path) -> None:
    (tmp_path / room).mkdir(parents=True)
    (tmp_path / room / "__init__.py").touch()
    assert packages(tmp_path) == [tmp_path / room]
    assert shadowing((tmp_path / room).parent) == ["operator"]
