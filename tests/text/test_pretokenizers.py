"""Every row of the table against its golden: what it makes of texts that the rows tell apart.

The goldens were made when each row, over a whole vocabulary, gave llama.cpp's tokens on 1502 strings. After a change
that is meant: `python -m tests.text.test_pretokenizers` from the repository's root, and read the diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from decodepool_worker.text.errors import BadTokenizer
from decodepool_worker.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer, pre_tokenizer
from tokenizers import Regex, pre_tokenizers

GOLDEN = Path(__file__).with_name("golden_splits.json")

ROWS = {row.splits: (name, row) for name, row in reversed(PRE_TOKENIZERS.items())}
NAMED_ROWS = dict(sorted(ROWS.values()))

TEXTS = [
    "Hello, world! It's I'M you'LL",
    "1234567 3.14 ١٢٣ ½ x²",
    "  two   spaces\n\n\n  x\t\ty \r\n",
    "snake_case camelCase HTTPServer //x\n/",
    "中文字符。かな カタカナ 한국어!?\n\n",
    "e\u0301 नमस्ते สวัสดี",
    "$100 <|x|> \u00a0\u3000👩‍👧 «Ж»",
    "if(x==1){\n\treturn;\n}",
]


def split(row: PreTokenizer, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in row.splits]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", NAMED_ROWS)
def test_a_row_cuts_text_as_its_golden_says(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    for text in TEXTS:
        pieces = split(NAMED_ROWS[name], text)
        assert "".join(pieces) == text
        assert pieces == golden[name][text]


def test_every_golden_has_its_row_and_no_two_rows_cut_alike() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert set(golden) == set(NAMED_ROWS)
    assert len({json.dumps(cuts) for cuts in golden.values()}) == len(golden)


@pytest.mark.parametrize("name", ["", "default", "gpt2", "SMOLLM", "bert-bge"])
def test_an_unknown_name_is_refused_and_named(name: str) -> None:
    with pytest.raises(BadTokenizer, match=f"tokenizer.ggml.pre: '{name}'"):
        pre_tokenizer(name)


def _rewrite() -> None:
    cuts = {name: {text: split(row, text) for text in TEXTS} for name, row in NAMED_ROWS.items()}
    GOLDEN.write_text(json.dumps(cuts, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    _rewrite()
