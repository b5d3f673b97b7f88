"""A program as data: what a record says, and what a step's counts are.

A record is a row of int64: operation, whether members must meet first (it needs results of records before it, or
overwrites what they read), the rows it runs over, the items of its work, then operands: addresses, strides in bytes and
sizes, in the order in which its case below takes them. `reals` holds its float.
"""

from __future__ import annotations

from enum import IntEnum

RECORD_WORDS = 20
OP, MEETS, DOMAIN, FIXED_ITEMS, ROW_ITEMS, OPERANDS_AT = range(6)
"""Where a record keeps its operation, whether it must meet, what it runs over, and the items it has: fixed + each
row's.
"""


class Op(IntEnum):
    """What a record does."""

    EMBED_QUANTISED = 0
    EMBED_FLOAT = 1
    ROPE_TABLE = 2
    NORM = 3
    QUANTISE = 4
    MATMUL = 5
    MATMUL_FLOAT = 6
    ROPE = 7
    APPEND = 8
    ATTENTION = 9
    SWIGLU = 10
    ADD = 11
    GATHER = 12


class Domain(IntEnum):
    """What a record's rows are: the step's, those whose logits are wanted, those again with their products going to
    logits slots, or units of attention.
    """

    STEP = 0
    WANTED = 1
    WANTED_TO_SLOTS = 2
    UNITS = 3


TALLY_BYTES, DONE_AT = 16, 8
ROWS, UNITS, WANTED, STOP = range(4)
"""Where `counts` keeps the step's rows, attention units, rows with wanted logits, and the word that ends the team."""
