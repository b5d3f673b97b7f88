"""A deadline moves on while something comes, and no timer is made for each piece."""

from __future__ import annotations

import asyncio

import pytest
from decodepool_web.deadlines import put_off


async def due_after(begun: float | None, seconds: float) -> float | None:
    """When a deadline that was due at `begun` seconds from now is due once it is put off, in seconds from now."""
    now = asyncio.get_running_loop().time()
    async with asyncio.timeout_at(None) as deadline:
        deadline.reschedule(None if begun is None else now + begun)
        put_off(deadline, seconds)
        due = deadline.when()
        await asyncio.sleep(0)
    return None if due is None else round(due - now, 1)


@pytest.mark.parametrize(("begun", "due"), [(30.0, 60.0), (58.0, 60.0), (59.8, 59.8), (None, None)])
def test_a_deadline_moves_by_whole_seconds(begun: float | None, due: float | None) -> None:
    assert asyncio.run(due_after(begun, 60.0)) == due


def test_a_deadline_that_is_at_once_stays() -> None:
    async def put_off_too_late() -> None:
        async with asyncio.timeout(60) as deadline:
            deadline.reschedule(0)
            put_off(deadline, 60)
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError):
        asyncio.run(put_off_too_late())
