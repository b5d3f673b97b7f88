from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny.models import Tiny, write


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Path]:
    """Make the file of a tiny model, once."""
    folder, made = tmp_path_factory.mktemp("tiny"), dict[Tiny, Path]()

    def path_of(tiny: Tiny) -> Path:
        if tiny not in made:
            made[tiny] = folder / f"{len(made)}.gguf"
            write(tiny, made[tiny])
        return made[tiny]

    return path_of
