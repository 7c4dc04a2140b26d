"""A provider of bare sockets, and one exchange with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tidewarden.config import Provider, Secret
from tidewarden.tokens.answers import Outcome
from tidewarden.tokens.exchange import Exchange

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"access_token":"a"}'
Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[str]:
    """A raw server: ``talk`` gets each whole request and the writer; yields the URL."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
                    await talk(head + await reader.readexactly(int(lengths[0].split(b":")[1])), writer)
        finally:
            writer.transport.abort()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/token"
    finally:
        running.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # The aborted transports are closed in the next turn.


def provider(url: str, **settings: Any) -> Provider:
    known: dict[str, Any] = {"client_id": "c0", "client_secret": Secret("hush"), "timeout_s": 3.0}
    return Provider(name="p", token_url=url, **(known | settings))


async def ask(url: str, token: str = "r-token", **settings: Any) -> Outcome:
    exchange = Exchange()
    try:
        return await exchange.refresh(provider(url, **settings), token)
    finally:
        await exchange.close()
