"""What a step needs beside weights and sessions: the activations of its rows.

rows x 4 bytes x ( 4 E                        the residual, a norm of it, a block's output, its quantised copy
                 + q + k + v + o              of the widest layer
                 + 2 x feed-forward width     of the widest layer; with experts, those a token uses and the shared one )
+ vocabulary x 16 bytes                       sorting one row's candidates
"""

from __future__ import annotations

from decodepool_sizing.layers import LayerShape
from decodepool_sizing.shape import ModelShape

MAX_STEP_ROWS = 256
"""Rows of one step, and so the most sessions a worker holds: each must be able to decode a token in every step."""

ACTIVATION_BYTES = 4
SORT_BYTES = 16


def workspace_bytes(shape: ModelShape, max_step_rows: int = MAX_STEP_ROWS) -> int:
    """Return the bytes that one step of `max_step_rows` rows needs at once."""
    attention = max(_attention_elements(layer) for layer in shape.layers)
    elements = 4 * shape.embedding_length + attention + 2 * _feed_forward_elements(shape)
    return max_step_rows * ACTIVATION_BYTES * elements + SORT_BYTES * shape.vocabulary_size


def _attention_elements(layer: LayerShape) -> int:
    queries = layer.head_count * (layer.key_length + layer.value_length)
    return queries + layer.kv_head_count * (layer.key_length + layer.value_length)


def _feed_forward_elements(shape: ModelShape) -> int:
    dense = max(shape.feed_forward_lengths)
    if shape.experts is None:
        return dense
    experts = shape.experts
    return max(dense, experts.used_count * experts.feed_forward_length + experts.shared_feed_forward_length)
