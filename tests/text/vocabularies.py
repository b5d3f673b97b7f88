"""Small vocabularies, as a GGUF header's metadata would hold them."""

from __future__ import annotations

Metadata = dict[str, object]


def byte_letters() -> list[str]:
    """GPT-2's letters for the 256 bytes, in byte order."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(value if value in printing else next(others)) for value in range(256)]


def spell(text: str) -> str:
    """Write text in GPT-2's letters."""
    letters = byte_letters()
    return "".join(letters[value] for value in text.encode())


def byte_bpe(pre: str = "smollm", words: tuple[str, ...] = (), marks: tuple[str, ...] = ("<s>", "</s>")) -> Metadata:
    """All bytes, then `words` with the merges that build each letter by letter, then control tokens."""
    texts, merges = byte_letters(), []
    for word in words:
        letters = spell(word)
        for end in range(2, len(letters) + 1):
            if letters[:end] not in texts:
                texts.append(letters[:end])
                merges.append(f"{letters[: end - 1]} {letters[end - 1]}")
    first_mark = len(texts)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*texts, *marks],
        "tokenizer.ggml.token_type": [1] * first_mark + [3] * len(marks),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": first_mark,
        "tokenizer.ggml.eos_token_id": first_mark + 1,
    }


def spm(pieces: tuple[str, ...] = ("\u2581",), scores: tuple[float, ...] | None = None) -> Metadata:
    """<unk>, <s>, </s>, the 256 bytes, then pieces; by default an earlier piece is the better merge, as Gemma's are."""
    fixed = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    ranks = scores if scores is not None else tuple(-float(rank) for rank in range(len(pieces)))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*fixed, *pieces],
        "tokenizer.ggml.scores": [0.0] * len(fixed) + list(ranks),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


FIRST_PIECE = 259
"""The id of the first of `spm`'s pieces."""
