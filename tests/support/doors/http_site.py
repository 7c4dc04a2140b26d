"""An HTTP door before recording rooms, and what its visitors ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp import web
from support.doors import doubles
from support.doors.http_app import serving_app

from tidewarden.clock import SystemClock
from tidewarden.errors import Error
from tidewarden.server import HttpServer
from tidewarden.server.console.recorder import FigureRecorder
from tidewarden.server.http.responses import problem
from tidewarden.server.http.route import add_routes

ALICE = {"Authorization": f"Bearer admin:{doubles.SECRET}"}


class FixedNode:
    """A node alone, all of which is well."""

    def status(self) -> dict[str, Any]:
        alone = {"address": "127.0.0.1:7420", "votes": True, "met": True, "boot": 1}
        return {
            "node": "n0",
            "leader": "n0",
            "epoch": 3,
            "view": 1,
            "primary": "embedded",
            "store": {"up": True},
            "members": {"n0": {**alone, "store_age_ms": 100, "raft_heard_s": None}},
            "raft": {"members": {"n0": {}}},
        }

    def stats(self) -> dict[str, Any]:
        return {"waiting_takes": 0}

    def complaint(self) -> str:
        return ""

    def warnings(self) -> dict[str, str]:
        return {}


class Site:
    def __init__(self, server: HttpServer, door: Any, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.door = door
        self.session = session

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        url = aiohttp.client.URL(f"http://127.0.0.1:{self.server.port}{path}", encoded=True)
        async with self.session.request(method, url, **more) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()


@asynccontextmanager
async def site(
    *,
    users: bool = False,
    rights: tuple[str, ...] = ("all",),
    traffic: Any = None,
    audit: Any = None,
    traffic_of_cluster: Any = None,
    tls: tuple[str, str] = ("", ""),
    **more: Any,
) -> AsyncIterator[Site]:
    known = (replace(doubles.ADMIN, rights=rights),) if users else ()
    door = doubles.Door(users=known, traffic=traffic, audit=audit)
    # Its ports are base and base + 1: a base of -1 makes the HTTP port 0, which the system chooses.
    config = replace(
        door.config, node=replace(door.config.node, base_port=-1, tls_cert=tls[0], tls_key=tls[1])
    )
    rooms: tuple[Any, ...] = (door.queues, door.tokens)
    figures = FigureRecorder("n0", SystemClock(), FixedNode(), door.server.stats, *rooms)
    services = replace(door.services, figures=figures, traffic_of_cluster=traffic_of_cluster)
    server = HttpServer(config, services, SystemClock(), **more)
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Site(server, door, session)
    finally:
        await server.stop(1)


@asynccontextmanager
async def serving_routes(table: Any, routes: Any) -> AsyncIterator[int]:
    """A table of routes alone, and the object whose methods it names; yields the port."""

    @web.middleware
    async def errors(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)
        except Error as error:
            return problem(error)

    app = web.Application(middlewares=[errors])
    add_routes(app.router, table, routes)
    async with serving_app(app) as port:
        yield port
