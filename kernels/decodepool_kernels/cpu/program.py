"""The compiled interpreter: a step is a list of records that every member of the team walks, claiming pieces of it."""

from __future__ import annotations

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
from decodepool_kernels.cpu.records import (
    DOMAIN,
    DONE_AT,
    FIXED_ITEMS,
    MEETS,
    OP,
    OPERANDS_AT,
    ROW_ITEMS,
    ROWS,
    STOP,
    TALLY_BYTES,
    UNITS,
    WANTED,
    Domain,
    Op,
)
from decodepool_kernels.cpu.rope import rope, rope_table
from decodepool_kernels.cpu.team import (
    PIECES_EACH,
    atomic_add,
    begin_step,
    end_step,
    enter_step,
    leave_step,
    next_step,
    use_default_rounding,
    wait_for_count,
    wake,
)


@compiled
def _products(op: int, domain: int, w: Any, slots: Any, rows: int, totals: int, first: int, last: int) -> None:
    out_rows = slots[:rows] if domain == Domain.WANTED_TO_SLOTS else slots[:0]
    if op == Op.MATMUL:
        matmul(
            w[0], w[1], w[2], np.int32(w[3]), w[4], w[5], w[6], w[7], w[8], w[9], w[10],
            out_rows, rows, totals, first, last,
        )  # fmt: skip
    else:
        matmul_float(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], out_rows, rows, totals, first, last)


@compiled
def _positional(op: int, w: Any, reals: Any, inputs: Any, scratch: int, first: int, last: int) -> None:
    _, positions, row_tables, tables, unit_rows, unit_counts, _, _ = inputs
    if op == Op.ROPE_TABLE:
        rope_table(w[0], w[1], reals[0], positions, w[2], first, last)
    elif op == Op.ROPE:
        rope(w[0], w[1], w[2], w[3], w[4], w[5], w[6], first, last)
    elif op == Op.APPEND:
        append(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], tables, w[8], row_tables, positions, first, last)
    else:
        attention(
            w[0], w[1], w[2], w[3], w[4], w[5], np.float32(reals[0]), w[6], w[7], w[8], tables, w[9],
            row_tables, positions, unit_rows, unit_counts, w[10], w[11], w[12], w[13], w[14], scratch, first, last,
        )  # fmt: skip


@compiled
def _rowwise(op: int, w: Any, reals: Any, inputs: Any, rows: int, first: int, last: int) -> None:
    tokens, wanted_rows = inputs[0], inputs[6]
    if op == Op.EMBED_QUANTISED:
        embed_quantised(
            w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], tokens, w[10], w[11], first, last
        )  # fmt: skip
    elif op == Op.EMBED_FLOAT:
        embed_float(w[0], w[1], w[2], w[3], tokens, w[4], w[5], first, last)
    elif op == Op.NORM:
        norm(w[0], w[1], w[2], w[3], w[4], w[5], np.float32(reals[0]), first, last)
    elif op == Op.QUANTISE:
        quantise(w[0], w[1], w[2], rows, first, last)
    elif op == Op.SWIGLU:
        swiglu(w[0], w[1], w[2], first, last)
    elif op == Op.ADD:
        add(w[0], w[1], w[2], first, last)
    else:
        gather(w[0], w[1], w[2], w[3], wanted_rows, first, last)


@compiled
def run_items(record: Any, reals: Any, inputs: Any, rows: int, scratch: int, first: int, last: int) -> None:
    """Run items [first, last) of one record."""
    op, words = record[OP], record[OPERANDS_AT:]
    if op in (Op.MATMUL, Op.MATMUL_FLOAT):
        _products(op, record[DOMAIN], words, inputs[7], rows, scratch, first, last)
    elif op in (Op.ROPE_TABLE, Op.ROPE, Op.APPEND, Op.ATTENTION):
        _positional(op, words, reals, inputs, scratch, first, last)
    else:
        _rowwise(op, words, reals, inputs, rows, first, last)


@compiled
def rows_of(domain: int, counts: Any) -> Any:
    """Return how many rows (or units) a record runs over in this step."""
    if domain == Domain.STEP:
        return counts[ROWS]
    return counts[UNITS] if domain == Domain.UNITS else counts[WANTED]


@compiled
def run_records(
    records: Any, reals: Any, counts: Any, inputs: Any, scratch: int, shared: int, tallies: int, members: int
) -> None:
    """Run one step as one of its members.

    `tallies` holds two counts a record: items claimed, and, at the first record since a meeting, items done since.
    """
    use_default_rounding()
    owed, group = 0, tallies + DONE_AT
    for index in range(records.shape[0]):
        record = records[index]
        claimed = tallies + index * TALLY_BYTES
        if record[MEETS]:
            wait_for_count(shared, group, owed)
            owed, group = 0, claimed + DONE_AT
        rows = rows_of(record[DOMAIN], counts)
        if rows == 0:
            continue
        items = record[FIXED_ITEMS] + record[ROW_ITEMS] * rows
        owed += items
        piece = -(-items // (PIECES_EACH * members)) if members > 1 else items
        while True:
            first = atomic_add(claimed, piece)
            if first >= items:
                break
            last = min(first + piece, items)
            run_items(record, reals[index], inputs, rows, scratch, first, last)
            atomic_add(group, last - first)
            wake(shared, group)
    wait_for_count(shared, group, owed)


@entry
def take_part(
    records: Any,
    reals: Any,
    counts: Any,
    inputs: Any,
    scratch: int,
    shared: int,
    tallies: Any,
    member: int,
    members: int,
) -> None:
    """Member 0 runs one step, or the end of the team where `counts` says so; the others take part in every step until
    then. One function, so that all of the above is compiled once.
    """
    tallies_at = tallies.ctypes.data
    if member == 0:
        tallies[:] = 0
        begin_step(shared)
        if counts[STOP] == 0:
            run_records(records, reals, counts, inputs, scratch, shared, tallies_at, members)
        end_step(shared)
        return
    begun = 0
    while True:
        begun = next_step(shared, begun)
        if counts[STOP]:
            return
        if enter_step(shared):
            if counts[STOP]:
                leave_step(shared)
                return
            run_records(records, reals, counts, inputs, scratch, shared, tallies_at, members)
            leave_step(shared)
