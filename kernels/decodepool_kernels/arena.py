"""Before which operations a team of threads must meet, given where a step's intermediate results lie."""

from __future__ import annotations

from decodepool_sizing.arena import Buffer, Placement, Uses, place

__all__ = ["Buffer", "Placement", "Uses", "meetings", "place"]


def meetings(uses: Uses, placement: Placement) -> list[bool]:
    """Tell before which operations the team must meet: those that touch what was written, or write what was read, since
    the last meeting.
    """
    read: list[Buffer] = []
    written: list[Buffer] = []
    answers = []
    for reads, writes in uses:
        touched = [(a, b) for a in written for b in (*reads, *writes)] + [(a, b) for a in read for b in writes]
        needs = any(placement.overlap(a, b) for a, b in touched)
        if needs:
            read, written = [], []
        read.extend(reads)
        written.extend(writes)
        answers.append(needs)
    return answers
