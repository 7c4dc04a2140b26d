"""The HTTP door's socket: how many may come in, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

import msgspec
from aiohttp import web

from tidewarden.errors import Full
from tidewarden.host_address import listened
from tidewarden.tls import HANDSHAKE_S

BACKLOG = 1024
# Between two requests, and for the head of one, its first too: a peer that drips its bytes holds a place for so long at most.
IDLE_S = 15.0


class HttpListener:
    """
    Listens for one application. Past ``connections_max`` peers a further one is told FULL and hung up on.

    Longer heads than ``line_bytes`` a line, and more pipelined requests than a few, aiohttp does not take in by itself.
    """

    def __init__(self, app: web.Application, connections_max: int, line_bytes: int) -> None:
        self._connections_max = connections_max
        self._runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=IDLE_S,
            max_line_size=line_bytes,
            max_field_size=line_bytes,
            handler_cancellation=True,  # Nobody waits for a token for who has gone.
        )
        self._server: asyncio.Server | None = None
        self.connections_total = 0
        self.refused_total = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self._admit,
            listened(host),
            port,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S if tls else None,
        )

    def _admit(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._connections_max:
            self.refused_total += 1
            return _Refusal(
                Full(f"This door has {self._connections_max} connections, as many as it may. Try again soon.")
            )
        self.connections_total += 1
        return server()

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Take no new connection; answer what is under way for at most ``grace_s`` seconds."""
        if self._server is not None:
            self._server.close()
        self._runner._shutdown_timeout = grace_s  # noqa: SLF001  no public name sets it after the start
        await self._runner.cleanup()

    def stats(self) -> dict[str, int]:
        """Numbers for /metrics."""
        server = self._runner.server
        return {
            "connections": 0 if server is None else len(server.connections),
            "connections_total": self.connections_total,
            "refused_total": self.refused_total,
        }


class _Refusal(asyncio.Protocol):
    """Answers before anything was asked, and hangs up."""

    def __init__(self, error: Full) -> None:
        body = msgspec.json.encode({"error": error.code, "message": str(error)})
        head = f"HTTP/1.1 {error.http_status} Full\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        self._said = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writing = cast(asyncio.WriteTransport, transport)
        writing.write(self._said)
        writing.close()
