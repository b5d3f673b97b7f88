"""A vocabulary as a GGUF file states it: read, checked, and not yet able to encode anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from decodepool_worker.text.errors import BadTokenizer
from decodepool_worker.text.metadata import Metadata
from decodepool_worker.text.pretokenizers import PreTokenizer, pre_tokenizer

TOKENS = "tokenizer.ggml.tokens"
MERGES = "tokenizer.ggml.merges"

SPACE = "\u2581"
"""How SPM vocabularies write a space."""


class TokenType(IntEnum):
    """GGUF's `token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Model(StrEnum):
    """The kinds of tokenizer, by their name in `tokenizer.ggml.model`."""

    BYTE_BPE = "gpt2"  # merges over bytes written as letters
    SPM = "llama"  # scores instead of merges; spaces written as U+2581
    SPACED_BPE = "gemma4"  # merges over plain characters; spaces written as U+2581


# Tokens that end a turn, by their text: files seldom name more than one. llama.cpp's list, less fill-in-the-middle.
_CHAT_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<EOT>", "[EOT]")
_TOOL_ENDS = ("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|eom_id|>", "<|tool_response>")
_TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[e~[")
_DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
END_OF_TURN = frozenset((*_CHAT_ENDS, *_TOOL_ENDS, *_TEXT_ENDS, _DEEPSEEK_END))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and the rules for joining them. `scores` is empty for BPE, `merges` for SPM."""

    model: Model
    texts: list[str]
    types: list[TokenType]
    scores: list[float]
    merges: list[tuple[str, str]]
    pre: PreTokenizer
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool
    add_space_prefix: bool

    @property
    def spells_spaces(self) -> bool:
        """Whether spaces are written as U+2581. A vocabulary of bytes alone cannot: there a space is its byte."""
        return self.model is not Model.BYTE_BPE and any(SPACE in text for text in self.texts)


def read_vocabulary(metadata: Metadata) -> Vocabulary | None:
    """Read `tokenizer.ggml.*`. None for a model without a tokenizer; BadTokenizer, with the key, for a bad one."""
    model = _model(metadata)
    if model is None:
        return None
    texts = _texts(metadata)
    types = _types(metadata, len(texts))
    pre = pre_tokenizer(metadata.text("tokenizer.ggml.pre")) if model is Model.BYTE_BPE else PreTokenizer(())
    spm = model is Model.SPM  # such files may leave out the ids that Llama 2 fixed
    bos_id = _special_id(metadata, "bos", types, 1 if spm else None)
    eos_id = _special_id(metadata, "eos", types, 2 if spm else None)
    unknown_id = _special_id(metadata, "unknown", types, 0 if spm else None)
    eos_ids = _eos_ids(metadata, eos_id, texts, types)
    for token in eos_ids:
        types[token] = TokenType.CONTROL  # some files call them user-defined; then a user's words could end a turn
    add_bos = metadata.flag("tokenizer.ggml.add_bos_token")
    if add_bos is None:
        add_bos = pre.add_bos or model is not Model.BYTE_BPE
    add_space_prefix = metadata.flag("tokenizer.ggml.add_space_prefix")
    return Vocabulary(
        model=model,
        texts=texts,
        types=types,
        scores=_scores(metadata, len(texts)) if spm else [],
        merges=[] if spm else _merges(metadata),
        pre=pre,
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        eos_ids=eos_ids,
        add_bos=add_bos and bos_id is not None,
        add_space_prefix=spm and add_space_prefix is not False,
    )


def _model(metadata: Metadata) -> Model | None:
    name = metadata.text("tokenizer.ggml.model")
    if name in ("none", "no_vocab") or (name is None and TOKENS not in metadata.values):
        return None
    if name not in set(Model):
        raise BadTokenizer(f"tokenizer.ggml.model: {name!r} is not a tokenizer that this worker knows")
    return Model(name)


def _texts(metadata: Metadata) -> list[str]:
    texts = metadata.texts(TOKENS)
    if not texts:
        raise BadTokenizer(f"{TOKENS}: absent or empty")
    first_ids: dict[str, int] = {}
    for index, text in enumerate(texts):
        first = first_ids.setdefault(text, index)
        if first != index and text:  # files pad their vocabularies with empty texts, which nothing encodes to
            raise BadTokenizer(f"{TOKENS}[{index}]: {text!r} is token {first} already")
    return texts


def _types(metadata: Metadata, count: int) -> list[TokenType]:
    key = "tokenizer.ggml.token_type"
    numbers = metadata.integers(key)
    if numbers is None:
        return [TokenType.NORMAL] * count
    if len(numbers) != count:
        raise BadTokenizer(f"{key}: {len(numbers)} types for {count} tokens")
    known = {int(kind): kind for kind in TokenType}
    return [known.get(number, TokenType.UNDEFINED) for number in numbers]


def _scores(metadata: Metadata, count: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    scores = metadata.numbers(key)
    if scores is None or len(scores) != count:
        raise BadTokenizer(f"{key}: {len(scores or [])} scores for {count} tokens")
    if any(map(math.isnan, scores)):
        raise BadTokenizer(f"{key}: holds NaN")
    return scores


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    lines = metadata.texts(MERGES)
    if lines is None:
        raise BadTokenizer(f"{MERGES}: absent")
    merges = []
    for index, line in enumerate(lines):
        space = line.find(" ", 1)  # a left half may itself begin with a space
        if space < 0:
            raise BadTokenizer(f"{MERGES}[{index}]: {line!r} is not two pieces")
        merges.append((line[:space], line[space + 1 :]))
    return merges


def _special_id(metadata: Metadata, name: str, types: list[TokenType], default: int | None) -> int | None:
    given = metadata.token_id(f"tokenizer.ggml.{name}_token_id", len(types))
    if given is not None:
        return given
    wanted = TokenType.UNKNOWN if name == "unknown" else TokenType.CONTROL
    if default is not None and default < len(types) and types[default] is wanted:
        return default
    return None


def _eos_ids(metadata: Metadata, eos_id: int | None, texts: list[str], types: list[TokenType]) -> frozenset[int]:
    named = {metadata.token_id(f"tokenizer.ggml.{name}_token_id", len(texts)) for name in ("eot", "eom")} | {eos_id}
    added = (TokenType.CONTROL, TokenType.USER_DEFINED)
    known = {text: index for index, text in enumerate(texts) if text in END_OF_TURN and types[index] in added}
    if "<|end|>" in known and {"<|return|>", "<|call|>"} <= known.keys():
        del known["<|end|>"]  # harmony: it ends a message, not the turn
    return frozenset(index for index in named if index is not None) | frozenset(known.values())
