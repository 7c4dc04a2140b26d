"""HTTP doors before real queues, and what their visitors ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
from support.doors import doubles
from support.doors.recording_rooms import FixedCluster
from support.inspect import http_runner_of

from tidewarden.clock import SystemClock
from tidewarden.config.load import Config, Limits, User
from tidewarden.server.http.server import HttpServer
from tidewarden.server.services import Services


class HttpDoor:
    """One node's HTTP port, with a client that keeps its connections."""

    def __init__(
        self, server: HttpServer, queues: Any, client: aiohttp.ClientSession, scheme: str = "http"
    ) -> None:
        self.scheme = scheme
        self.server = server
        self.queues = queues
        self.client = client

    @property
    def port(self) -> int:
        return self.server.port

    def transports(self) -> list[asyncio.WriteTransport]:
        """Of the connections that are open."""
        runner = http_runner_of(self.server)
        return [one.transport for one in runner.server.connections if one.transport is not None]

    async def call(self, method: str, path: str, json: Any = None, **more: Any) -> tuple[int, Any]:
        """Status and decoded answer."""
        url = aiohttp.client.URL(f"{self.scheme}://127.0.0.1:{self.port}{path}", encoded=True)
        if json is not None:
            more["json"] = json
        if self.scheme == "https":
            more["ssl"] = False
        async with self.client.request(method, url, **more) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.read()

    async def good(self, method: str, path: str, json: Any = None, **more: Any) -> Any:
        """The answer of a request that succeeds."""
        status, found = await self.call(method, path, json, **more)
        assert status == 200, (status, found)
        return found


@asynccontextmanager
async def http_door(
    queues: Any,
    *,
    users: tuple[User, ...] = (),
    rooms: dict[str, Any] | None = None,
    tls: tuple[str, str] = ("", ""),
    **limits: int,
) -> AsyncIterator[HttpDoor]:
    config = Config()
    config = replace(
        config,
        # Its ports are base and base + 1: a base of -1 makes the HTTP port 0, which the system
        # chooses.
        node=replace(config.node, base_port=-1, tls_cert=tls[0], tls_key=tls[1]),
        limits=replace(Limits(), **limits),
        users=users,
    )
    services = Services(queues, FixedCluster(), **(rooms or {}))
    server = HttpServer(config, services, SystemClock())
    await server.start()
    try:
        async with aiohttp.ClientSession() as client:
            yield HttpDoor(server, queues, client, "https" if tls[0] else "http")
    finally:
        await server.stop(1)


def bearer(user: str = "admin") -> dict[str, str]:
    return {"Authorization": f"Bearer {user}:{doubles.SECRET}"}
