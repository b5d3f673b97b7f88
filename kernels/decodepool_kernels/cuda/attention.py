"""How a model's attention is run on a GPU: how it is cut, and the memory that its states take."""

from __future__ import annotations

from collections.abc import Callable

from decodepool_kernels.cuda.attention_programs import WORKERS
from decodepool_kernels.cuda.device import Gpu
from decodepool_kernels.cuda.inputs import AttentionCut
from decodepool_kernels.cuda.records import Scratch
from decodepool_kernels.cuda.registry import WIDE_HEAD_DIMS
from decodepool_kernels.cuda.wide_units import PLACES
from decodepool_kernels.graph import Attention, Graph

PARTIAL_SLOTS = 1024
"""Chunk states of attention there is room for; rows beyond fold as they go."""
HOPPER_CAPABILITY = 90
COPY_ENGINE_CAPABILITY = 90


def attention_cut(graph: Graph, gpu: Gpu, *, wide: bool = True) -> AttentionCut:
    """Return how attention is cut, without wide units where `wide` is off; ValueError where layers differ in heads,
    which no architecture here does.
    """
    shapes = {(op.heads // op.kv_heads, op.kv_heads) for op in graph.operations if isinstance(op, Attention)}
    if len(shapes) > 1:
        raise ValueError(f"layers of different heads are not lowered: {sorted(shapes)}")
    group_heads, kv_heads = shapes.pop() if shapes else (1, 1)
    has_program = gpu.capability == HOPPER_CAPABILITY and set(_widths(graph)) <= set(WIDE_HEAD_DIMS)
    wide_at_once = gpu.sm_count if wide and has_program and group_heads <= PLACES else 0
    shared_at_once = gpu.sm_count if gpu.capability >= COPY_ENGINE_CAPABILITY else 0
    return AttentionCut(group_heads, kv_heads, 2 * gpu.sm_count, PARTIAL_SLOTS, wide_at_once, shared_at_once)


def attention_scratch(graph: Graph, cut: AttentionCut, take: Callable[[int], int]) -> Scratch:
    """Return the memory for states of chunks and totals of wide units, each piece zeroed and got from `take`."""
    width = max(_widths(graph), default=0)
    heads = max((op.heads for op in graph.operations if isinstance(op, Attention)), default=0)
    states = cut.partial_slots * heads
    chunks = (take(4 * states * width), take(8 * states))
    if not cut.wide_at_once:
        return Scratch(*chunks)
    threads = cut.wide_at_once * WORKERS
    return Scratch(*chunks, take(2 * threads * width), take(16 * threads), take(threads // 8))


def _widths(graph: Graph) -> list[int]:
    return [op.out.width // op.heads for op in graph.operations if isinstance(op, Attention)]
