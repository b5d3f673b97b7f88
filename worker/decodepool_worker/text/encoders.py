"""A Vocabulary as a `tokenizers.Tokenizer`: the library does the merging, this file gives it what a GGUF file says.

Control tokens are left out of what text can become: however it is spelled, plain text never yields one.
"""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from decodepool_worker.text.errors import BadTokenizer
from decodepool_worker.text.vocabulary import MERGES, SPACE, Model, TokenType, Vocabulary

_SPELLABLE = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE, TokenType.UNDEFINED, TokenType.UNUSED)


def build_encoder(vocabulary: Vocabulary) -> Tokenizer:
    """Return an encoder of plain text. Raises BadTokenizer where the library refuses the vocabulary."""
    encoder = Tokenizer(_bpe(vocabulary))
    if vocabulary.model is Model.BYTE_BPE:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in vocabulary.pre.splits]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    elif vocabulary.spells_spaces:
        prefix = [normalizers.Prepend(SPACE)] if vocabulary.add_space_prefix else []
        encoder.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    if vocabulary.model is Model.SPACED_BPE:
        encoder.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    whole = _ids_of(vocabulary, TokenType.USER_DEFINED)
    encoder.add_tokens([AddedToken(vocabulary.texts[token], normalized=False) for token in whole])
    return encoder


def build_splitter(vocabulary: Vocabulary) -> tuple[Tokenizer, list[int]]:
    """Return an encoder that finds control tokens in text and nothing else, and their ids in its numbering."""
    splitter = Tokenizer(models.BPE())
    ids = _ids_of(vocabulary, TokenType.CONTROL)
    splitter.add_special_tokens([AddedToken(vocabulary.texts[token], normalized=False, special=True) for token in ids])
    return splitter, ids


def _ids_of(vocabulary: Vocabulary, wanted: TokenType) -> list[int]:
    return [token for token, kind in enumerate(vocabulary.types) if kind is wanted and vocabulary.texts[token]]


def _bpe(vocabulary: Vocabulary) -> models.BPE:
    ids = {text: index for index, text in enumerate(vocabulary.texts) if text and vocabulary.types[index] in _SPELLABLE}
    unknown = vocabulary.unknown_id
    if vocabulary.model is not Model.BYTE_BPE and unknown is not None:
        ids[vocabulary.texts[unknown]] = unknown
    else:
        unknown = None
    merges = _scored_merges(vocabulary, ids) if vocabulary.model is Model.SPM else _stated_merges(vocabulary, ids)
    try:
        return models.BPE(
            vocab=ids,
            merges=merges,
            unk_token=None if unknown is None else vocabulary.texts[unknown],
            fuse_unk=True,
            byte_fallback=vocabulary.model is not Model.BYTE_BPE,
            ignore_merges=vocabulary.pre.ignore_merges,
        )
    except Exception as fault:  # the library raises bare Exception
        raise BadTokenizer(f"tokenizer.ggml.tokens: {fault}") from fault


def _stated_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    for index, (left, right) in enumerate(vocabulary.merges):
        for text in (left, right, left + right):
            if text not in ids:
                raise BadTokenizer(f"{MERGES}[{index}]: {text!r} is not a token")
    return vocabulary.merges


def _scored_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return every pair of pieces that makes a piece, best score first.

    Equal scores go by id: Gemma's files carry one score for all of them, and its ids are in order of merging.
    """
    pieces = {text for text, index in ids.items() if vocabulary.types[index] is TokenType.NORMAL}
    ranked = sorted(pieces, key=lambda text: (-vocabulary.scores[ids[text]], ids[text]))
    return [
        (text[:cut], text[cut:])
        for text in ranked
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
