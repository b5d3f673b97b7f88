"""What a step needs on a CPU beside weights and sessions: the activations of its rows.

A row keeps f32 activations (4 bytes an element) and, beside what goes into a matrix product, its quantised copy (2.5
bytes). Buffers are reused within a layer, so a row needs the larger of the two halves of one:

    attention      4 (4 E + 3 q + 3 kv) + 2.5 (E + q)      q and kv: queries and keys of the widest layer
    feed-forward   4 (6 E + 3 F) + 2.5 (E + F)             F: with experts, those a token uses and the shared one

and for each thread that draws, 32 bytes for each token of the vocabulary. Tests hold the engine's own sum, and what a
draw takes, against this.
"""

from __future__ import annotations

from collections.abc import Mapping

from decodepool_sizing.devices import DeviceKind
from decodepool_sizing.shape import ModelShape

MAX_SESSIONS = 256
"""The most sessions a worker holds: each must be able to decode a token in every step. More would not be faster: at
this width weights are read once for so many rows that arithmetic rules.
"""

STEP_ROWS: Mapping[DeviceKind, int] = {"cpu": 256, "cuda": 512}
"""Rows of one step: so many sessions at least. On a GPU a prompt's attention fills the card from 512 rows on."""

DRAWING_THREADS = 8
"""Threads that draw at the same time, at most. All are planned for, whatever the cores: who plans a pod does not know
those of its node, and its worker must come to the same plan.
"""

DRAW_BYTES = 32
"""What a draw takes for each token of the vocabulary: the row with penalties, its weights, what top_p sorts. Of a flat
row, of which top_p keeps much, and after a history of most tokens, it is up to twice as much: for that there is room in
the process, where loading was.
"""


def workspace_bytes(shape: ModelShape, max_step_rows: int = STEP_ROWS["cpu"]) -> int:
    """Return the bytes that one step of `max_step_rows` rows, and its draws, need at once."""
    row_bytes = max(_attention_row_bytes(shape), _feed_forward_row_bytes(shape))
    return max_step_rows * row_bytes + DRAWING_THREADS * DRAW_BYTES * shape.vocabulary_size


def _attention_row_bytes(shape: ModelShape) -> int:
    queries = max(layer.head_count * max(layer.key_length, layer.value_length) for layer in shape.layers)
    keys = max(layer.kv_head_count * max(layer.key_length, layer.value_length) for layer in shape.layers)
    embedding = shape.embedding_length
    return 4 * (4 * embedding + 3 * queries + 3 * keys) + 5 * (embedding + queries) // 2


def _feed_forward_row_bytes(shape: ModelShape) -> int:
    width, embedding = feed_forward_elements(shape), shape.embedding_length
    return 4 * (6 * embedding + 3 * width) + 5 * (embedding + width) // 2


def feed_forward_elements(shape: ModelShape) -> int:
    """Return the width of the widest feed-forward: with experts, of those that a token uses and the shared one."""
    dense = max(shape.feed_forward_lengths)
    if shape.experts is None:
        return dense
    experts = shape.experts
    return max(dense, experts.used_count * experts.feed_forward_length + experts.shared_feed_forward_length)
