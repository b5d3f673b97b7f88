"""Deadlines that move on while a body comes."""

from __future__ import annotations

import asyncio

GRAIN_SECONDS = 1.0


def put_off(deadline: asyncio.Timeout, seconds: float) -> None:
    """Have a deadline come `seconds` from now, give or take a second: a timer that is moved is kept until its time, and
    one for every small piece would take more memory than the body. One that is set to 0, at once, stays.
    """
    later, due = asyncio.get_running_loop().time() + seconds, deadline.when()
    if due is not None and 0 < due < later - GRAIN_SECONDS:
        deadline.reschedule(later)
