"""An application of aiohttp on a free port of loopback, and whatever serves, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from aiohttp import web

Served = TypeVar("Served")


@contextlib.asynccontextmanager
async def serving_app(app: web.Application, backlog: int = 128) -> AsyncIterator[int]:
    """It is served until the block is left; yields the port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=backlog).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def served_in_thread(
    server: contextlib.AbstractAsyncContextManager[Served],
) -> Iterator[Served]:
    """Enter it in a loop of its own in a thread, so that nothing the test does makes it late."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server of a test", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(60)
    finally:
        ended = server.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(ended, loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
