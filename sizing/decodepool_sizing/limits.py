"""Every bound of the model file reader, in one place.

A header is a stranger's claim: no count or length in it is believed beyond these bounds, nor beyond the bytes that
follow it. Each bound is well above the largest published file and low enough that a file at the bound is still read
in under 200 MB.
"""

from __future__ import annotations

HEADER_BYTES = 64 << 20
"""All of the header: metadata and tensor table. The largest published are near 20 MiB, with a tokenizer's JSON
inside.
"""

METADATA_KEYS = 1 << 16
TENSORS = 1 << 16
"""DeepSeek-V3 has 1,025 tensors; files with one tensor an expert have some 40,000."""

KEY_BYTES = 256
TENSOR_NAME_BYTES = 128
"""The specification says 64."""

ARRAY_ITEMS = 2 << 20
"""Items of all arrays together. A vocabulary of 262,144 with 514,000 merges, scores and types comes to 1.3 million."""

ARRAY_DEPTH = 4
DIMENSIONS = 4
ALIGNMENT_BYTES = 1 << 16

BLOCKS = 1 << 12
"""Layers of a model, and so the length of every per-layer list."""

WIDTH = 1 << 24
"""Any count of elements, heads, experts or tokens along one side of a tensor."""

CONTEXT_TOKENS = 1 << 31
"""Positions are 32-bit integers in every engine."""
