from __future__ import annotations

import re
from pathlib import Path

import decodepool_cli
from decodepool_cli.main import COMMANDS


def test_every_module_is_a_command_or_on_the_map() -> None:
    page = decodepool_cli.__doc__ or ""
    named = {*re.findall(r"`(\w+)`", page), *COMMANDS, "__init__", "__main__"}
    assert {path.stem for path in Path(decodepool_cli.__file__).parent.glob("*.py")} <= named
    assert all(
        (Path(decodepool_cli.__file__).with_name(f"{name}.py")).exists() for name in named if name != "decodepool"
    )
