"""Sends an answer that hands a task or a lock out, and undoes that if no client can have got it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

from aiohttp import web

# Events which say that the peer has hung up; the loop may not have told of them yet.
GONE = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)


async def delivered(
    request: web.Request, response: web.Response, undo: Callable[[], object]
) -> web.Response:
    """
    Send ``response`` now, and call ``undo`` when that fails or the client has gone meanwhile.

    Bytes that the kernel has taken count as received, and only those: none are left in our own
    buffer.
    """
    transport = request.transport
    try:
        if transport is None or has_gone(transport):
            raise ConnectionResetError("the client has gone")
        transport.set_write_buffer_limits(1)  # TLS takes 0 for full also when it is empty
        await response.prepare(request)
        await response.write_eof()
        if transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.set_write_buffer_limits()
    except ConnectionError:
        undo()
        if transport is not None:
            transport.abort()
    except asyncio.CancelledError:
        undo()
        raise
    return response


def has_gone(transport: asyncio.WriteTransport) -> bool:
    """Return whether the peer has hung up."""
    if transport.is_closing():
        return True
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    look = select.poll()
    look.register(socket.fileno(), GONE)
    return bool(look.poll(0))
