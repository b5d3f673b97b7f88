"""A key file is followed: keys change without a restart."""

from __future__ import annotations

import asyncio

from decodepool_sizing.api_keys import ApiKeys

LOOK_SECONDS = 2.0
"""How often a key file is looked at again."""


async def follow(keys: ApiKeys) -> None:
    """Reread the keys' file now and then, for as long as somebody serves by it."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        keys.reread()
