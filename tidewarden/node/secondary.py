"""
A further process of a node: a RESP door at the node's port, with queues and a registration of its
own.

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
from tidewarden.os_process import (
    calm_collector,
    heed_signals,
    keep_memory_private,
    raise_file_limit,
)
from tidewarden.queue.locks import Locks
from tidewarden.server.relay import LineSender, relayed
from tidewarden.server.resp.server import RespServer
from tidewarden.server.verbs.table import COMMANDS
from tidewarden.store.preflight import StoreServer

from .process_parts import ProcessParts

log = logging.getLogger("tidewarden.node.secondary")

DRAIN_S = 5.0
TELL_S = 1.0


@dataclass(frozen=True, slots=True)
class Orders:
    """
    What a front is told at its start. It goes through a file without a name, for ``url`` has the
    store's password.
    """

    config: Config
    number: int
    url: str
    views: bool
    server: StoreServer
    port: int


class Nobody:
    """The cluster's state: whoever asks for it is relayed."""

    def status(self) -> Mapping[str, Any]:
        return {}


class Secondary(ProcessParts):
    """
    One further process. :meth:`run` serves until ``stopping`` is set, or the first process has
    gone.
    """

    def __init__(self, orders: Orders, wire: socket.socket, clock: Clock) -> None:
        super().__init__(orders.config, clock, f"{orders.config.node.name}/{orders.number}")
        self._orders = orders
        self._wire = wire
        self.resp: RespServer | None = None

    async def run(self) -> None:
        """Build, serve, take down. Raises: OSError: the port is not to be had; StoreDown."""
        loop = asyncio.get_running_loop()
        self._wire.setblocking(False)
        loop.add_reader(self._wire, self._heard_first)
        orders = self._orders
        async with contextlib.AsyncExitStack() as stack:
            self.data = await stack.enter_async_context(self._link(orders.url, "data"))
            control = await stack.enter_async_context(self._link(orders.url, "control"))
            await self._join(
                stack, orders.url, self.data, control, views=orders.views, server=orders.server
            )
            await self.nodes.register()
            limits = self.config.limits
            locks = Locks(self.queues, wait_max_ms=limits.wait_ms, waiting_max=limits.waiting_max)
            self.resp = RespServer(
                self.config,
                self.queues,
                None,
                None,
                Nobody(),
                self.clock,
                locks=locks,
                commands=relayed(COMMANDS),
                port=orders.port,
                hand_over=LineSender(self._wire),
            )
            self.resp.connections_max = raise_file_limit(limits).resp
            await self.resp.start()
            jobs = [
                asyncio.create_task(self.nodes.run(), name="nodes"),
                asyncio.create_task(self.store_clock.run(), name="store clock"),
                asyncio.create_task(
                    self.queues.store_memory.run(control, self.clock), name="store memory"
                ),
                asyncio.create_task(self._tell(), name="tell"),
            ]
            for job in jobs:
                job.add_done_callback(self._ended)
            calm_collector()
            self._send({"ready": True})
            await self.stopping.wait()
            self.queues.draining = True
            await self.resp.stop(DRAIN_S)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def stats(self) -> dict[str, Any]:
        """This process's part of the node's figures."""
        counts = {f"sessions_{name}": n for name, n in self.queues.session_counts().items()}
        node = {
            "waiting_takes": self.queues.waiting(),
            "lost_takes_released_total": self.queues.strays.released,
            "store_calls_total": self.data.calls,
            "store_connects_total": self.data.reconnects,
            **self.commits.stats(),
            **counts,
        }
        return {"resp": self.resp.own_stats() if self.resp else {}, "node": node}

    async def _tell(self) -> None:
        while True:
            self._send({"stats": self.stats()})
            await sleep(self.clock, TELL_S)

    def _send(self, message: dict[str, Any]) -> None:
        # the first process is behind: the next figures will do
        with contextlib.suppress(BlockingIOError):
            self._wire.send(msgspec.json.encode(message))

    def _heard_first(self) -> None:
        """
        The first process hands over its users, in a file, when they have changed; else only its end
        can be read.
        """
        fds: list[int] = []
        try:
            word, fds, _, _ = socket.recv_fds(self._wire, 16, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            word = b""
        if word:
            for fd in fds:
                with os.fdopen(fd, "rb") as file:
                    file.seek(0)
                    users: tuple[User, ...] = pickle.load(file)
                if self.resp is None:
                    self.config = replace(self.config, users=users)
                else:
                    self.resp.reload(users)
            return
        asyncio.get_running_loop().remove_reader(self._wire)
        self.stopping.set()


async def _main(front: Secondary) -> None:
    keep_memory_private()
    # SIGHUP is the first process's to heed
    heed_signals(asyncio.get_running_loop(), front.stopping.set, lambda: None)
    await front.run()


def main() -> None:
    """``python -m tidewarden.node.secondary ORDERS WIRE``: two inherited file descriptors."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        orders: Orders = pickle.load(file)
    node = replace(orders.config.node, name=f"{orders.config.node.name}-{orders.number}")
    logs.setup(replace(orders.config, node=node))
    wire = socket.socket(fileno=int(sys.argv[2]))
    uvloop.run(_main(Secondary(orders, wire, SystemClock())))


if __name__ == "__main__":
    from . import secondary as front  # by its own name, under which the orders were written

    front.main()
