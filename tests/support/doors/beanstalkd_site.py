"""A beanstalkd door before a real queue, and bare sockets at it; nothing of pytest."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tidewarden.clock import SystemClock
from tidewarden.config.load import Beanstalkd, Config, Node, User
from tidewarden.queue.queues import Queues
from tidewarden.server.access.admission import AdmissionControl
from tidewarden.server.access.users import Users
from tidewarden.server.beanstalkd.server import BeanstalkdServer
from tidewarden.server.services import Services


class Talk:
    """A bare socket at the door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        """A line; nothing when the door hung up."""
        async with asyncio.timeout(20):
            return (await self.reader.readline()).removesuffix(b"\r\n")

    async def ask(self, line: str | bytes) -> bytes:
        """The first line of the answer to a command."""
        self.send((line.encode() if isinstance(line, str) else line) + b"\r\n")
        return await self.line()

    async def body(self, line: str) -> tuple[bytes, bytes]:
        """The first line of the answer but for its length, and what stands behind it."""
        first = await self.ask(line)
        words, _, size = first.rpartition(b" ")
        if words.partition(b" ")[0] not in (b"OK", b"FOUND", b"RESERVED"):
            return first, b""
        async with asyncio.timeout(20):
            data = await self.reader.readexactly(int(size) + 2)
        assert data.endswith(b"\r\n")
        return words, data[:-2]

    async def stats(self, line: str) -> dict[str, str]:
        """What one of the stats commands says."""
        first, data = await self.body(line)
        assert first == b"OK", first
        rows = data.decode().splitlines()
        assert rows[0] == "---"
        return dict(row.split(": ", 1) for row in rows[1:])

    async def put(
        self, body: bytes = b"x", priority: int = 0, delay_s: int = 0, run_s: int = 60
    ) -> int:
        answer = await self.ask(
            b"put %d %d %d %d\r\n%s" % (priority, delay_s, run_s, len(body), body)
        )
        assert answer.startswith(b"INSERTED "), answer
        return int(answer.split()[1])

    async def reserve(self, timeout_s: int = 10) -> tuple[int, bytes]:
        words, body = await self.body(f"reserve-with-timeout {timeout_s}")
        assert words.startswith(b"RESERVED "), words
        return int(words.split()[1]), body

    async def close(self) -> None:
        self.writer.close()


class BeanstalkdSite:
    """A running door."""

    def __init__(self, server: BeanstalkdServer, queues: Queues) -> None:
        self.server = server
        self.queues = queues
        self.talks: list[Talk] = []

    async def dial(self, tls: ssl.SSLContext | None = None) -> Talk:
        made = Talk(*await asyncio.open_connection("127.0.0.1", self.server.port, ssl=tls))
        self.talks.append(made)
        return made


@asynccontextmanager
async def beanstalkd_site(
    queues: Any,
    *,
    users: tuple[User, ...] = (),
    certificate: tuple[str, str] = ("", ""),
    traffic: Any = None,
    audit: Any = None,
    **settings: Any,
) -> AsyncIterator[BeanstalkdSite]:
    """The door on a port that the system chooses; ``settings``: of ``[beanstalkd]``."""
    clock, config = SystemClock(), Config()
    config = replace(
        config,
        # so that its own port comes out as 0
        node=replace(Node(), base_port=-4, tls_cert=certificate[0], tls_key=certificate[1]),
        beanstalkd=Beanstalkd(enabled=True, **settings),
        users=users,
    )
    known = Users(users, clock, loopback=True)
    # the door asks nothing of the cluster
    services = Services(queues, None, traffic=traffic, audit=audit)  # type: ignore[arg-type]
    server = BeanstalkdServer(config, services, clock, known, AdmissionControl(clock))
    await server.start()
    site = BeanstalkdSite(server, queues)
    try:
        yield site
    finally:
        for talk in site.talks:
            await talk.close()
        await server.stop(0)
