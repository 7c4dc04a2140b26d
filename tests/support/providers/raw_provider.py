"""A provider of bare sockets, and one exchange with it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tidewarden.config.load import Provider, Secret
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.provider.token_response import Outcome

OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:"
    b' 20\r\n\r\n{"access_token":"a"}'
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """
    A listener that ``serve`` serves until its peer has gone, or until the end; yields the port.
    """
    serving: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            # Of a task that was cancelled, its end would be an error to asyncio (until 3.12).
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                await serve(reader, writer)
        finally:
            writer.transport.abort()

    running = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # The aborted transports are closed in the next turn.


class Flood:
    """A server that answers each request with ``first``, then ``more`` until it is cut off."""

    def __init__(self, first: bytes, more: bytes) -> None:
        self.first, self.more = first, more
        self.sent = 0
        self.cut_off = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.first)
        try:
            while self.more:
                writer.write(self.more)
                await writer.drain()
                self.sent += len(self.more)
        except ConnectionError:
            self.cut_off.set()


@contextlib.asynccontextmanager
async def server(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A raw server: ``talk`` gets each whole request and the writer; yields the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [
                line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            ]
            await talk(head + await reader.readexactly(int(lengths[0].split(b":")[1])), writer)

    async with listening(serve, tls) as port:
        yield f"http{'s' * bool(tls)}://127.0.0.1:{port}/token"


def provider(url: str, **settings: Any) -> Provider:
    known: dict[str, Any] = {"client_id": "c0", "client_secret": Secret("hush"), "timeout_s": 3.0}
    return Provider(name="p", token_url=url, **(known | settings))


async def asked(one: Provider, token: str = "r-token") -> Outcome:
    endpoint = TokenEndpoint()
    try:
        return await endpoint.refresh(one, token)
    finally:
        await endpoint.close()


async def ask(url: str, token: str = "r-token", **settings: Any) -> Outcome:
    return await asked(provider(url, **settings), token)
