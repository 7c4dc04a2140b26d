"""Sends an answer that hands something out, and undoes it where nobody can have received it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web


async def delivered(
    request: web.Request, response: web.Response, undo: Callable[[], object]
) -> web.Response:
    """
    Send ``response`` now, and call ``undo`` when that fails or the client has gone meanwhile.

    What the kernel has taken counts as received.
    """
    try:
        _check(request)
        await response.prepare(request)
        await response.write_eof()
        _check(request)
    except ConnectionError:
        undo()
        if request.transport is not None:
            request.transport.abort()
    except asyncio.CancelledError:
        undo()
        raise
    return response


def _check(request: web.Request) -> None:
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client has gone")
