"""Finds out, while a node starts, whether the primary of several stores takes writes."""

from __future__ import annotations

import asyncio

from tidewarden.clock import Clock, sleep
from tidewarden.errors import StoreDown
from tidewarden.store import StoreConnection
from tidewarden.store.durability.view_library import mark_command

WRITE_S = 2.0
"""So long the primary may take to connect, and so long to answer."""
AGAIN_S = 0.1


async def check_writable(url: str, cluster: str, client: str, clock: Clock) -> None:
    """
    Return once the primary at ``url`` has taken a write that changes nothing.

    A primary that has lost its copies refuses them until a store follows it, which may be that of
    the node that starts: were its start to fail by that, its store would end with it, and there
    would never be a copy.

    Raises: StoreDown: it took none; a moment later, so that it may be tried again at once.
    """
    link = StoreConnection(url, client, clock, called="primary", patient=False)
    try:
        await link.start(wait_s=WRITE_S)
        async with asyncio.timeout(WRITE_S):
            await link.call(*mark_command(cluster))
    except TimeoutError:
        raise StoreDown(f"the primary has not taken a write for {WRITE_S:g} s") from None
    except StoreDown:
        await sleep(clock, AGAIN_S)
        raise
    finally:
        await link.stop()
