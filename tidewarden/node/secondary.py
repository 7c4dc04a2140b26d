"""
Serves a RESP port in a further process of a node, with queues and a registration of its own.

The node's first process starts it (:mod:`tidewarden.node.secondaries`) and is at the other end of
its ``wire``, a socket of packets: it says ``ready`` once it serves, its figures every second, and
hands over lines for what the first process does. When the wire ends, so does this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import uvloop

from tidewarden import log as logs
from tidewarden.clock import Clock, SystemClock, sleep
from tidewarden.config.load import Config, User
from tidewarden.duties import Duties, ending_with
from tidewarden.histograms import told_of
from tidewarden.server.audit.audit_log import AuditLog, audit_log
from tidewarden.server.consumers.process_consumers import ProcessConsumers
from tidewarden.server.consumers.questions import Ask
from tidewarden.server.relay import relayed
from tidewarden.server.resp.relay_line import LineSender
from tidewarden.server.resp.server import RespServer
from tidewarden.server.services import Services
from tidewarden.server.traffic.handing_over import HandingOver
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.server.traffic.tap import TapFilter
from tidewarden.server.verbs.table import COMMANDS
from tidewarden.store.preflight import StoreServer

from .os_process import (
    calm_collector,
    heed_signals,
    keep_memory_private,
    raise_file_limit,
)
from .process_parts import ProcessParts, links_to, open_queues
from .product_scripts import product_scripts

log = logging.getLogger("tidewarden.front")

DRAIN_S = 5.0
TELL_S = 1.0
TAPS = b"taps "
"""What the first process begins the list of the node's taps with."""
FAULT = b"fault "
"""What it begins with to say why no store can take the writes; behind it nothing: one may."""
ALONE = b"alone "
"""Likewise, where that is because no majority of the nodes is in reach."""
ASK = b"ask "
"""What it begins a question about consumers with: its number, and what is asked, as msgpack."""
TELL_AGAIN_S = 0.02
"""Before an answer for which there was no room is sent again."""
WORD_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Orders:
    """
    Tells a further process what to serve.

    It goes through a file without a name, for the URLs have the store's passwords.
    """

    config: Config
    number: int
    url: str
    server: StoreServer
    port: int
    near_url: str = ""
    """How the node's own copy of the data is read; empty: it has none."""


class RelayedCluster:
    """Stands in for the cluster's state, for which requests are relayed."""

    def status(self) -> Mapping[str, Any]:
        return {}


class Secondary:
    """
    Serves as a further process of a node until ``stopping`` is set, or the first process has gone.

    It begins to hear the first one, at the other end of ``wire``, when it is built.
    """

    def __init__(
        self,
        orders: Orders,
        wire: socket.socket,
        clock: Clock,
        stopping: asyncio.Event,
        parts: ProcessParts,
        audit: AuditLog | None = None,
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._stopping = stopping
        self._parts = parts
        self._duties = Duties(clock)
        config, queues = orders.config, parts.queues
        recorder, loop = Recorder(clock), asyncio.get_running_loop()
        node = config.node
        self._consumers = ProcessConsumers(node.name, queues, clock, orders.number, node.processes)
        self._telling: set[asyncio.Task[None]] = set()
        self._traffic = HandingOver(recorder, self._send, loop.call_later)
        self._resp = RespServer(
            config,
            Services(
                queues,
                RelayedCluster(),
                locks=queues.locks,
                traffic=recorder,
                consumers=self._consumers,
                audit=audit,
            ),
            clock,
            commands=relayed(COMMANDS),
            port=orders.port,
            hand_over=LineSender(wire),
            connections_max=raise_file_limit(config.limits).resp,
        )
        if audit is not None:
            self._resp.users.on_denied = audit.denied
        wire.setblocking(False)
        loop.add_reader(wire, self._heard_first)

    async def serve(self) -> None:
        """
        Serve until told to stop, then let what is under way end.

        Raises: OSError: the port is not to be had.
        """
        await self._resp.start()
        duties = self._duties
        async with contextlib.AsyncExitStack() as stack:
            for job in (
                duties.begin("nodes", self._parts.nodes.run),
                *self._parts.start_watches(duties),
                duties.begin("tell", self._tell),
            ):
                await stack.enter_async_context(ending_with(job, self._stopping))
            calm_collector()
            self._send({"ready": True})
            await self._stopping.wait()
            self._parts.queues.drain.started = True
            await self._resp.stop(DRAIN_S)

    def stats(self) -> dict[str, Any]:
        """Return this process's part of the node's figures."""
        parts = self._parts
        node = {**parts.stats(), **self._duties.stats(), **told_of(*parts.times())}
        return {"resp": self._resp.own_stats(), "node": node}

    async def _tell(self) -> None:
        while True:
            self._send({"stats": self.stats()})
            self._traffic.hand_over()
            await sleep(self._clock, TELL_S)

    async def _answer(self, question: bytes) -> None:
        """Answer the first process about consumers, as long as it may wait for that."""
        number, ask = msgspec.msgpack.decode(question, type=tuple[int, Ask])
        told = msgspec.msgpack.encode(await self._consumers.answer(ask))
        for _ in range(int(TELL_S / TELL_AGAIN_S)):
            if self._send({"told": (number, told)}):
                return
            await sleep(self._clock, TELL_AGAIN_S)

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Send a packet; False: the first process is behind, and the next figures will do."""
        try:
            self._wire.send(msgspec.json.encode(message))
        except BlockingIOError:
            return False
        return True

    def _heard_first(self) -> None:
        """
        Take over what the first process sends: users in a file, taps, the fault of the stores.

        Or notice its end.
        """
        fds: list[int] = []
        try:
            word, fds, _, _ = socket.recv_fds(self._wire, WORD_BYTES, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            word = b""
        if word:
            for fd in fds:
                with os.fdopen(fd, "rb") as file:
                    file.seek(0)
                    users: tuple[User, ...] = pickle.load(file)
                self._resp.reload(users)
            if word.startswith(TAPS):
                taps = msgspec.json.decode(word[len(TAPS) :], type=list[tuple[int, TapFilter]])
                self._traffic.follow(taps)
            if word.startswith(ASK):
                task = asyncio.ensure_future(self._answer(word[len(ASK) :]))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
            if word.startswith((FAULT, ALONE)):
                fault = word[len(FAULT) :].decode()
                self._parts.links.note_fault(fault, alone=word.startswith(ALONE))
            return
        asyncio.get_running_loop().remove_reader(self._wire)
        self._stopping.set()


async def run(orders: Orders, wire: socket.socket, clock: Clock, stopping: asyncio.Event) -> None:
    """
    Build a further process, have it serve, and take it down.

    Raises: OSError: the port is not to be had; StoreDown.
    """
    config = orders.config
    registered = f"{config.node.name}/{orders.number}"
    async with contextlib.AsyncExitStack() as stack:
        links = links_to(orders.url, config, registered, clock, product_scripts())
        data = await stack.enter_async_context(links.open("data"))
        control = await stack.enter_async_context(links.open("control"))
        near, server = links.near(orders.near_url), orders.server
        queues = await open_queues(stack, config, clock, links, data, control, server, near)
        parts = ProcessParts(
            config,
            clock,
            links,
            data,
            control,
            queues,
            look_again=queues.wakeups.wake_all,
            compare=_whole,
        )
        await stack.enter_async_context(parts.subscriber.listening())
        await parts.nodes.register()
        audit = audit_log(config, control.call, clock)
        if audit is not None:
            await stack.enter_async_context(audit.running())
        await Secondary(orders, wire, clock, stopping, parts, audit).serve()


async def _whole() -> bool:
    """Leave it to the first process to judge the store."""
    return True


async def _main(orders: Orders, wire: socket.socket) -> None:
    keep_memory_private()
    stopping = asyncio.Event()
    # SIGHUP is the first process's to heed
    heed_signals(asyncio.get_running_loop(), stopping.set, lambda: None)
    await run(orders, wire, SystemClock(), stopping)


def main() -> None:
    """Run ``python -m tidewarden.node.secondary ORDERS WIRE``: two inherited file descriptors."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        orders: Orders = pickle.load(file)
    node = replace(orders.config.node, name=f"{orders.config.node.name}-{orders.number}")
    logs.setup(replace(orders.config, node=node))
    wire = socket.socket(fileno=int(sys.argv[2]))
    uvloop.run(_main(orders, wire))


if __name__ == "__main__":
    from . import secondary as own  # by its own name, under which the orders were written

    own.main()
