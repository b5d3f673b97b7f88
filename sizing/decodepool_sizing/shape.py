"""What a model is, in numbers: enough to check its tensors, to run it, and to say what a session of it costs.

`read_shape` puts together what all architectures share with what is an architecture's own, in its file under
`architectures/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from decodepool_sizing import limits
from decodepool_sizing.architectures.common import Common, Own, read_common
from decodepool_sizing.architectures.registry import ARCHITECTURES
from decodepool_sizing.errors import BadModelFile, UnknownArchitecture, shown
from decodepool_sizing.header import Header
from decodepool_sizing.layers import CacheRows, ExpertShape, LayerShape, RopeScaling, RopeShape

__all__ = ["CacheRows", "ExpertShape", "LayerShape", "ModelShape", "RopeScaling", "RopeShape", "read_shape"]

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's numbers. Layers are those of the trunk: blocks that predict further tokens are not run and not counted.

    `vocabulary_size` is the rows of `token_embd.weight`, which may be more than the tokenizer knows.
    `attention_scale` multiplies q.k; `logit_softcap` None is none. `rope` turns full layers, `window_rope` those with
    a window.
    """

    architecture: str
    name: str
    embedding_length: int
    vocabulary_size: int
    context_length: int
    layers: tuple[LayerShape, ...]
    norm_epsilon: float
    rope: RopeShape
    window_rope: RopeShape | None
    attention_scale: float
    tied_embeddings: bool
    experts: ExpertShape | None = None
    logit_softcap: float | None = None
    prediction_blocks: int = 0
    per_layer_embedding_length: int = 0

    @property
    def block_count(self) -> int:
        """Layers of the trunk."""
        return len(self.layers)

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Query heads, a layer."""
        return tuple(layer.head_count for layer in self.layers)

    @property
    def kv_head_counts(self) -> tuple[int, ...]:
        """Key and value heads, a layer."""
        return tuple(layer.kv_head_count for layer in self.layers)

    @property
    def feed_forward_lengths(self) -> tuple[int, ...]:
        """Width of the dense feed-forward, a layer; 0 where a layer has none."""
        return tuple(layer.feed_forward_length for layer in self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Attention window, a layer; None sees everything."""
        return tuple(layer.window for layer in self.layers)

    @property
    def key_length(self) -> int:
        """Elements of a key head: of the widest layer, where layers differ."""
        return max(layer.key_length for layer in self.layers)

    @property
    def value_length(self) -> int:
        """Elements of a value head: of the widest layer, where layers differ."""
        return max(layer.value_length for layer in self.layers)

    @property
    def cache_rows(self) -> tuple[CacheRows, ...]:
        """Every kind of row that every layer keeps."""
        return tuple(rows for layer in self.layers for rows in layer.cache)

    @property
    def fixed_state_bytes(self) -> int:
        """Recurrent state of one session, whatever its length: f32."""
        return sum(layer.state_bytes for layer in self.layers)

    @property
    def max_context_tokens(self) -> int:
        """The longest context the file allows: its own length, or what its rope scaling stretches to where that is
        more.
        """
        scaling = self.rope.scaling
        stretched = int(scaling.factor * (scaling.original_context_length or 0)) if scaling.kind != "none" else 0
        return max(self.context_length, stretched)


def read_shape(header: Header) -> ModelShape:
    """Read a model's shape from its header. BadModelFile names the key or tensor; UnknownArchitecture, those that are
    known.
    """
    rules = ARCHITECTURES.get(header.architecture)
    if rules is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnknownArchitecture(
            f"general.architecture: {shown(header.architecture)!r} is not known; known are {known}"
        )
    _check_whole(header)
    common = read_common(header)
    own = rules(common)
    _check_heads(common, own)
    return ModelShape(
        architecture=header.architecture,
        name=_name(header),
        embedding_length=common.embedding_length,
        vocabulary_size=_vocabulary_size(common),
        context_length=common.keys.count("context_length", most=limits.CONTEXT_TOKENS),
        layers=own.layers,
        norm_epsilon=common.keys.real("attention.layer_norm_rms_epsilon", most=1.0),
        rope=own.rope,
        window_rope=own.window_rope,
        attention_scale=own.attention_scale,
        tied_embeddings=OUTPUT not in header.by_name,
        experts=common.experts,
        logit_softcap=common.keys.real("final_logit_softcapping", 0.0, least=-1e-30) or None,
        prediction_blocks=common.prediction_blocks,
        per_layer_embedding_length=own.per_layer_embedding_length,
    )


def _check_whole(header: Header) -> None:
    parts = header.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise BadModelFile(f"split.count: this file is one of {parts} parts of a model; merge them into one file first")


def _check_heads(common: Common, own: Own) -> None:
    for index, layer in enumerate(own.layers):
        if not layer.head_count and (layer.cache or not layer.state_bytes):
            raise common.keys.fault("attention.head_count", f"0 for layer {index}, which attends")
        if layer.cache and not layer.kv_head_count:
            raise common.keys.fault("attention.head_count_kv", f"0 for layer {index}, which attends")


def _vocabulary_size(common: Common) -> int:
    embedding = common.header.by_name.get(EMBEDDING)
    if embedding is None:
        raise BadModelFile(f"tensor {EMBEDDING}: missing")
    if len(embedding.dims) != 2 or embedding.dims[0] != common.embedding_length:
        expected = f"[{common.embedding_length}, vocabulary]"
        raise BadModelFile(f"tensor {EMBEDDING}: expected {expected}, found {list(embedding.dims)}")
    tokens = common.header.metadata.get("tokenizer.ggml.tokens", ())
    if isinstance(tokens, tuple) and len(tokens) > embedding.dims[1]:
        raise BadModelFile(f"tokenizer.ggml.tokens: {len(tokens)} tokens, but {EMBEDDING} has {embedding.dims[1]} rows")
    return embedding.dims[1]


def _name(header: Header) -> str:
    name = header.metadata.get("general.name")
    return shown(name) if isinstance(name, str) and name else header.architecture
