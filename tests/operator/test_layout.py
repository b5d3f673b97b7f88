"""The package's own page names its modules: all that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import decodepool_operator

FOLDER = Path(decodepool_operator.__file__).parent


def test_the_page_of_modules_names_each_of_them() -> None:
    page = decodepool_operator.__doc__ or ""
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    rooms = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert sorted(named) == sorted(modules | rooms)
