"""The compiled interpreter: a step is a list of records, run by every member of the team with a barrier where an
operation needs another's results.

A record is a row of int64: operation, whether a barrier comes first, the rows it runs over (every row of the step, or
those whose logits are wanted), then operands: addresses, strides in bytes and sizes, in the order in which its case
below takes them. `reals` holds its two floats.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from decodepool_kernels.cpu.attention import attention
from decodepool_kernels.cpu.elementwise import add, swiglu
from decodepool_kernels.cpu.embed import embed_float, embed_quantised
from decodepool_kernels.cpu.gather import gather
from decodepool_kernels.cpu.jit import compiled, entry
from decodepool_kernels.cpu.kv import append
from decodepool_kernels.cpu.matmul import matmul
from decodepool_kernels.cpu.matmul_float import matmul_float
from decodepool_kernels.cpu.norm import norm
from decodepool_kernels.cpu.quantise import quantise
from decodepool_kernels.cpu.rope import rope, rope_table
from decodepool_kernels.cpu.team import barrier, sem_post, sem_wait

RECORD_WORDS = 20
OPERANDS_AT = 3


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
    """Which rows a record runs over, and where a matrix product puts them."""

    STEP = 0
    WANTED = 1
    WANTED_TO_SLOTS = 2


EMBED_QUANTISED, EMBED_FLOAT, ROPE_TABLE, NORM, QUANTISE, MATMUL, MATMUL_FLOAT = (int(op) for op in list(Op)[:7])
ROPE, APPEND, ATTENTION, SWIGLU, ADD, GATHER = (int(op) for op in list(Op)[7:])
TO_SLOTS = int(Domain.WANTED_TO_SLOTS)

ROWS, UNITS, WANTED, STOP = range(4)
"""Where `counts` keeps the step's rows, attention units, rows with wanted logits, and the word that ends the team."""


@compiled
def _products(op: int, domain: int, w: Any, slots: Any, rows: int, totals: int, member: int, members: int) -> None:
    out_rows = slots[:rows] if domain == TO_SLOTS else slots[:0]
    if op == MATMUL:
        matmul(
            w[0], w[1], w[2], np.int32(w[3]), w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11],
            out_rows, rows, totals, member, members,
        )  # fmt: skip
    else:
        matmul_float(
            w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], out_rows, rows, totals, member, members
        )


@compiled
def _positional(op: int, w: Any, reals: Any, counts: Any, inputs: Any, scratch: int, member: int, members: int) -> None:
    _, positions, row_tables, tables, unit_rows, unit_counts, _, _ = inputs
    rows = counts[ROWS]
    if op == ROPE_TABLE:
        rope_table(w[0], w[1], reals[0], positions, w[2], rows, member, members)
    elif op == ROPE:
        rope(w[0], w[1], w[2], w[3], w[4], w[5], w[6], rows, member, members)
    elif op == APPEND:
        append(
            w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], tables, w[8], row_tables, positions, rows, member, members
        )
    else:
        attention(
            w[0], w[1], w[2], w[3], w[4], w[5], np.float32(reals[0]), w[6], w[7], w[8], tables, w[9],
            row_tables, positions, unit_rows, unit_counts, counts[UNITS], w[10], w[11], scratch, member, members,
        )  # fmt: skip


@compiled
def _rowwise(op: int, w: Any, reals: Any, inputs: Any, rows: int, member: int, members: int) -> None:
    tokens, wanted_rows = inputs[0], inputs[6]
    if op == EMBED_QUANTISED:
        embed_quantised(
            w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], tokens, w[10], w[11], rows, member, members
        )
    elif op == EMBED_FLOAT:
        embed_float(w[0], w[1], w[2], w[3], tokens, w[4], w[5], rows, member, members)
    elif op == NORM:
        norm(w[0], w[1], w[2], w[3], w[4], w[5], np.float32(reals[0]), rows, member, members)
    elif op == QUANTISE:
        quantise(w[0], w[1], w[2], w[3], rows, member, members)
    elif op == SWIGLU:
        swiglu(w[0], w[1], w[2], w[3] * rows, member, members)
    elif op == ADD:
        add(w[0], w[1], w[2], w[3] * rows, member, members)
    else:
        gather(w[0], w[1], w[2], w[3], wanted_rows, rows, member, members)


@compiled
def run_records(
    records: Any,
    reals: Any,
    counts: Any,
    inputs: Any,
    scratch: int,
    arrivals: int,
    passed: int,
    member: int,
    members: int,
) -> int:
    """Run one step as one member; return the barriers passed since the team began."""
    for index in range(records.shape[0]):
        op, needs_barrier, domain = records[index, 0], records[index, 1], records[index, 2]
        words = records[index, OPERANDS_AT:]
        if needs_barrier:
            passed += 1
            barrier(arrivals, passed * members)
        rows = counts[ROWS] if domain == 0 else counts[WANTED]
        if rows == 0:
            continue
        if op in (MATMUL, MATMUL_FLOAT):
            _products(op, domain, words, inputs[7], rows, scratch, member, members)
        elif op in (ROPE_TABLE, ROPE, APPEND, ATTENTION):
            _positional(op, words, reals[index], counts, inputs, scratch, member, members)
        else:
            _rowwise(op, words, reals[index], inputs, rows, member, members)
    passed += 1
    barrier(arrivals, passed * members)
    return passed


@entry
def take_part(
    records: Any,
    reals: Any,
    counts: Any,
    inputs: Any,
    scratch: int,
    arrivals: int,
    start: int,
    passed: int,
    member: int,
    members: int,
) -> int:
    """Member 0 wakes the others, runs one step with them and returns the barriers passed; they run every step until
    told to stop. One function, so that all of the above is compiled once.
    """
    if member == 0:
        for _ in range(members - 1):
            sem_post(start)
        return run_records(records, reals, counts, inputs, scratch, arrivals, passed, 0, members)
    while True:
        while sem_wait(start) != 0:
            pass
        if counts[STOP]:
            return passed
        passed = run_records(records, reals, counts, inputs, scratch, arrivals, passed, member, members)
