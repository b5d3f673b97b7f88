"""Every package's own page names its modules: all that there are, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import decodepool_operator
import pytest

FOLDER = Path(decodepool_operator.__file__).parent
PACKAGES = {str(page.parent.relative_to(FOLDER)): page for page in sorted(FOLDER.rglob("__init__.py"))}


@pytest.mark.parametrize("page", PACKAGES.values(), ids=PACKAGES)
def test_the_page_of_a_package_names_each_of_its_modules(page: Path) -> None:
    text = ast.get_docstring(ast.parse(page.read_text())) or ""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    modules = {path.stem for path in page.parent.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in page.parent.glob("*/__init__.py")}
    assert sorted(named) == sorted(modules | packages)


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in FOLDER.rglob("*.py")}
    assert {page.parent for page in PACKAGES.values()} == folders
