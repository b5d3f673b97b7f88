"""A file that is refused is refused before anything slow is imported: that, and no clock, holds refusals short."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.sizing.gguf_bytes import METADATA, Tensor, gguf, tensors, tiny

SLOW = {"numba", "llvmlite", "aiohttp", "tokenizers", "jinja2", "psutil", "uvloop", "rich"}
LISTED = """
import sys
from decodepool_cli.main import main
code = main()
print(*{name.partition(".")[0] for name in sys.modules})
sys.exit(code)
"""


def with_a_weight(name: str, value: float) -> bytes:
    def spoiled(tensor: Tensor) -> Tensor:
        values = np.ones(int(np.prod(tensor.dims)), np.float32)
        values[17] = value
        return replace(tensor, data=values.tobytes()) if tensor.name == name else tensor

    return gguf(METADATA, [spoiled(tensor) for tensor in tensors()])


BROKEN = {
    "no model": b"GGML" + bytes(100),
    "cut header": tiny()[:500],
    "cut weights": tiny()[:-100],
    "another architecture": tiny({"general.architecture": "mamba"}),
    "a weight that is NaN": with_a_weight("output.weight", np.nan),
    "a weight of a norm that is NaN": with_a_weight("blk.1.ffn_norm.weight", np.nan),
    "a weight that is infinite": with_a_weight("blk.0.attn_q.weight", -np.inf),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_file_is_refused_before_the_slow_imports(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(data)
    words = ["logits", str(tmp_path / "bad.gguf"), "--tokens", "1,2", "--out", str(tmp_path / "x.npy")]
    done = subprocess.run([sys.executable, "-c", LISTED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"decodepool: {tmp_path}")
    assert done.stderr.count("\n") == 1
    assert "numpy" in done.stdout.split()
    assert not SLOW & set(done.stdout.split())
    assert not (tmp_path / "x.npy").exists()
