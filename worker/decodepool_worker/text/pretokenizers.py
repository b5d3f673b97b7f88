# ruff: noqa: RUF001 - patterns name letters of every script, some of which look like Latin ones
"""How byte-level BPE cuts text into words, by the name that `tokenizer.ggml.pre` gives: the table, and nothing else.

A row is a sequence of splits. Each cuts every piece that the one before left; what it matches is a piece of its own.
The patterns are those of the models' own tokenizer.json. Every row was run against llama.cpp, and was equal on 1502
strings, but for gpt-4o and tekken where combining marks are: llama.cpp has stand-in patterns for these.
A name that is not here is refused: a guess would give a model words it never saw, and nobody an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from decodepool_worker.text.errors import BadTokenizer


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text. `ignore_merges`: a word that is a token is that token, whatever the merges say."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _llama3(digits: str) -> str:
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased(contraction: str, digits: str) -> str:
    """Words split where lower case turns to upper, as o200k and Tekken do."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}{_UPPER}*{_LOWER}+{contraction}|{lead}{_UPPER}+{_LOWER}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_MARKED = r"[\p{L}\p{M}]"
_QWEN35 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_MARKED}+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?{_MARKED}+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# Scripts that have capitals, as of the Unicode that DeepSeek trained with.
_CASED_LETTERS = (
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯ"
    "Ա-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ"
    "ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻ"
    "Ȿ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲"
    "𑢠-𑣟𞤀-𞥃]"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_CASED_LETTERS}+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    "[一-龥\u0800-一가-\ud7ff]+",
    _DIGIT,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", _DIGIT)

_SMOLLM_ROW = PreTokenizer((_DIGIT, _GPT2))
_GPT2_ROW = PreTokenizer((_GPT2,))
_LLAMA3_ROW = PreTokenizer((_llama3(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2_ROW = PreTokenizer((_llama3(_DIGIT),))
_GPT4O_ROW = PreTokenizer((_cased(f"{_CONTRACTION}?", r"\p{N}{1,3}"),))
_DEEPSEEK3_ROW = PreTokenizer(_DEEPSEEK3)

_ROWS = (
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", _SMOLLM_ROW),
    ("gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4", _GPT2_ROW),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0", _LLAMA3_ROW),
    ("glm4 glm5", replace(_LLAMA3_ROW, add_bos=False)),
    ("dbrx smaug-bpe chatglm-bpe", replace(_LLAMA3_ROW, add_bos=False, ignore_merges=False)),
    ("qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2", _QWEN2_ROW),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("gpt-4o llama4 kanana2 minimax-m2", _GPT4O_ROW),
    ("tekken", PreTokenizer((_cased("", _DIGIT),), ignore_merges=True, add_bos=True)),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm", _DEEPSEEK3_ROW),
)
PRE_TOKENIZERS = {name: row for names, row in _ROWS for name in names.split()}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """Return the row for a `tokenizer.ggml.pre`; BadTokenizer if there is none."""
    if name is None:
        raise BadTokenizer("tokenizer.ggml.pre: absent, so the way this vocabulary cuts words is unknown")
    row = PRE_TOKENIZERS.get(name)
    if row is None:
        raise BadTokenizer(f"tokenizer.ggml.pre: {name!r} is not a pre-tokenizer that this worker knows")
    return row
