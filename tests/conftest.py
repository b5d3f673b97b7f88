from __future__ import annotations

from pathlib import Path

import pytest
from decodepool_sizing.cache_folder import cache_folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, for tests marked `model`."""
    path = cache_folder("models") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.fail(f"{path} is missing: `make model` puts it there")
    return path
