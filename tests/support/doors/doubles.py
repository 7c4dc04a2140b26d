"""A RESP door and bare sockets at it; nothing of pytest."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from typing import Any

import hiredis
from support.doors.recording_rooms import (
    FixedCluster,
    RecordingLocks,
    RecordingQueues,
    RecordingTokens,
)
from support.doors.recording_schedules import RecordingSchedules
from support.doors.recording_steering import RecordingSteering

from tidewarden.clock import SystemClock
from tidewarden.config.load import Config, Node, User, hash_generated
from tidewarden.server.resp.server import RespServer
from tidewarden.server.services import Services

SECRET = "correct horse % battery"
ADMIN = User(name="admin", secret_hash=hash_generated(SECRET))


class Door:
    """A RESP door on a free port, with recording rooms behind; ``async with``."""

    def __init__(
        self,
        *,
        users: tuple[User, ...] = (),
        queues: Any = None,
        connections_max: int | None = None,
        traffic: Any = None,
        audit: Any = None,
        consumers: Any = None,
        **limits: int,
    ) -> None:
        defaults = Config()
        self.config = replace(
            defaults,
            node=replace(Node(), base_port=0),
            limits=replace(defaults.limits, **limits) if limits else defaults.limits,
            users=users,
        )
        self.lines: list[Line] = []
        self.queues = queues or RecordingQueues()
        self.tokens = RecordingTokens()
        self.schedules = RecordingSchedules()
        self.locks = RecordingLocks()
        self.cluster = FixedCluster()
        self.steering = RecordingSteering()
        rooms: tuple[Any, ...] = (self.queues, self.cluster, self.tokens, self.schedules)
        others = (self.locks, self.steering)
        known = {"consumers": consumers and consumers.own.own, "consumers_of_cluster": consumers}
        self.services = Services(*rooms, *others, traffic=traffic, audit=audit, **known)
        self.server = RespServer(
            self.config, self.services, SystemClock(), connections_max=connections_max
        )

    def provide(self, **rooms: Any) -> None:
        """Have other rooms answer."""
        self.server.context.services = replace(self.server.context.services, **rooms)

    async def __aenter__(self) -> Door:
        await self.server.start()
        self.port = self.server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        for line in self.lines:
            await line.close()
        await self.server.stop(0)

    async def dial(self) -> Line:
        self.lines.append(Line(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.lines[-1]


class Line:
    """A bare socket at the door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        # of reply() alone: whoever reads by it does not read by line()
        self._parser = hiredis.Reader()

    def send(self, *requests: str | bytes | tuple[str | bytes, ...]) -> None:
        """Requests as tuples of arguments or as text split at blanks; together, as one piece."""
        self.writer.write(b"".join(framed(request) for request in requests))

    async def line(self) -> bytes:
        """One line of a reply, or nothing when the door hung up."""
        async with asyncio.timeout(20):
            return (await self.reader.readline()).removesuffix(b"\r\n")

    async def rest(self) -> bytes:
        """Everything until the door hangs up."""
        async with asyncio.timeout(20):
            return await self.reader.read()

    async def ask(self, *request: str | bytes) -> bytes:
        """The first line of the reply to a request."""
        self.send(request if len(request) > 1 else request[0])
        return await self.line()

    async def reply(self) -> Any:
        """The next reply, parsed; an error as one."""
        async with asyncio.timeout(20):
            while (found := self._parser.gets()) is False:
                data = await self.reader.read(65536)
                if not data:
                    raise ConnectionResetError("the door hung up")
                self._parser.feed(data)
        return found

    async def call(self, *request: str | bytes | int) -> Any:
        """The reply to one request."""
        self.send(tuple(str(word) if isinstance(word, int) else word for word in request))
        return await self.reply()

    async def replies(self, *requests: str | bytes | tuple[str | bytes, ...]) -> list[Any]:
        """The replies to requests that are sent as one piece."""
        self.send(*requests)
        return [await self.reply() for _ in requests]

    def drop(self, *, reset: bool = False) -> None:
        """Go without a word; with ``reset`` as a host does that crashed and came back."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


def framed(request: str | bytes | tuple[str | bytes, ...]) -> bytes:
    """A request as RESP."""
    words = request.split() if isinstance(request, str | bytes) else request
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )
