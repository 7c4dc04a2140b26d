"""
Starts, watches and stops the node's further processes, and adds their figures to its own.

What a process held when it died is free again as soon as the leader has seen its name registered
anew, which is done here at once, for the process itself takes a second to be back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Config, User
from tidewarden.errors import ConfigError, Error
from tidewarden.server.resp.server import RespServer
from tidewarden.server.stats_merge import add_up, lasting
from tidewarden.store.child_process import how_ended, kill_group, start_child, stop_child
from tidewarden.store.preflight import StoreServer

from .secondary import Orders

log = logging.getLogger("tidewarden.node.secondaries")

START_S = 30.0
SILENT_S = 10.0  # a front that has told nothing for so long hangs, and is killed
AGAIN_FIRST_S, AGAIN_LAST_S = 0.1, 5.0
STEADY_S = 30.0  # one that ran for so long is started again at once
PACKET_BYTES = 1 << 18


class Secondaries:
    """
    Starts the further processes, and again when one ends. ``register(name)`` registers a process's
    name anew.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        register: Callable[[str], Awaitable[None]],
    ) -> None:
        self._config = config
        self._clock = clock
        self._register = register
        self._keepers: list[asyncio.Task[None]] = []
        self._alive: dict[int, _Alive] = {}
        self._gone: dict[str, Any] = {}  # the counters of those that have ended
        self._lines: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self.restarts = 0

    async def start(self, url: str, store: StoreServer, door: RespServer) -> None:
        """
        Start ``node.processes`` − 1 of them. ``door`` takes the connections that they hand over.

        Raises: ConfigError: not all serve within thirty seconds.
        """
        # their secrets are not for them
        config = replace(self._config, providers={}, webhooks={}, companions={})
        for number in range(1, self._config.node.processes):
            orders = Orders(config, number, url, store, door.port)
            keeper = asyncio.create_task(self._keep(orders, door), name=f"front {number}")
            self._keepers.append(keeper)
        until = self._clock.monotonic() + START_S
        while self._keepers and self.serving() < len(self._keepers):
            if self._clock.monotonic() > until:
                raise ConfigError(
                    [
                        f"node.processes: {self.serving()} of {len(self._keepers)} serve after"
                        f" {START_S:g} s"
                    ]
                )
            await sleep(self._clock, 0.02)

    async def stop(self, grace_s: float) -> None:
        """Let each process answer what is under way, at most ``grace_s`` seconds."""
        self._stopping = True
        fronts = list(self._alive.values())
        await asyncio.gather(*(stop_child(front.process, self._clock, grace_s) for front in fronts))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, *self._lines, return_exceptions=True)

    def reload(self, users: Sequence[User]) -> None:
        """Hand these users to all processes, also to those that are started later."""
        self._config = replace(self._config, users=tuple(users))
        for number, front in self._alive.items():
            with tempfile.TemporaryFile() as file:
                pickle.dump(self._config.users, file)
                file.flush()
                try:
                    socket.send_fds(front.wire, [b"users"], [file.fileno()])
                except OSError as error:
                    log.warning(
                        "process %d could not be told the users and is started again: %s",
                        number,
                        error,
                    )
                    kill_group(front.process)

    def serving(self) -> int:
        """Return how many serve now."""
        return sum(front.ready for front in self._alive.values())

    def stats(self, part: str) -> list[dict[str, Any]]:
        """
        Return each process's latest figures of a part, ``resp`` or ``node``.

        The last entry is what remains of those that have ended.
        """
        return [front.stats.get(part, {}) for front in self._alive.values()] + [
            self._gone.get(part, {})
        ]

    def shown(self) -> list[dict[str, Any]]:
        """Return what the node's status shows of each."""
        return [
            {
                "process": number,
                "pid": front.process.pid,
                "ready": front.ready,
                "connections": front.stats.get("resp", {}).get("connections", 0),
            }
            for number, front in sorted(self._alive.items())
        ]

    async def _keep(self, orders: Orders, door: RespServer) -> None:
        number = orders.number
        pause_s = AGAIN_FIRST_S
        while True:
            began = self._clock.monotonic()
            try:
                front = await self._launch(orders, door)
            except OSError as error:  # no process, or no file, to be had
                log.error(
                    "process %d of this node cannot be started: %s; tried again", number, error
                )
                await sleep(self._clock, AGAIN_LAST_S)
                continue
            try:
                await self._watch(front)
            finally:
                front.close()
                kill_group(front.process)
                self._alive.pop(number, None)
                for part, stats in front.stats.items():
                    self._gone[part] = add_up(self._gone.get(part, {}), lasting(stats))
            if self._stopping:
                return
            self.restarts += 1
            log.warning(
                "process %d of this node %s; starting it again",
                number,
                how_ended(front.process.returncode),
            )
            await self._end_leases(number)
            pause_s = (
                AGAIN_FIRST_S
                if self._clock.monotonic() - began > STEADY_S
                else min(2 * pause_s, AGAIN_LAST_S)
            )
            await sleep(self._clock, pause_s)

    async def _end_leases(self, number: int) -> None:
        try:
            await self._register(f"{self._config.node.name}/{number}")
        except Error as error:
            log.warning("what process %d held is not free yet: %s", number, error)

    async def _launch(self, orders: Orders, door: RespServer) -> _Alive:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = replace(orders, config=replace(orders.config, users=self._config.users))
        with tempfile.TemporaryFile() as file, theirs:
            pickle.dump(orders, file)
            file.seek(0)
            keep = (file.fileno(), theirs.fileno())
            argv = [sys.executable, "-m", "tidewarden.node.secondary", *map(str, keep)]
            process = await start_child(argv, output=sys.stderr.buffer, keep_fds=keep)
        front = self._alive[orders.number] = _Alive(process, ours, self._clock.monotonic())
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._heard, front, door)
        return front

    async def _watch(self, front: _Alive) -> None:
        """Return when the process has ended; kill it when it says nothing any more."""
        ended = asyncio.ensure_future(front.process.wait())
        try:
            while not ended.done():
                pause = asyncio.ensure_future(sleep(self._clock, SILENT_S / 4))
                await asyncio.wait({ended, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                silent_s = self._clock.monotonic() - front.heard_at
                if (
                    not ended.done()
                    and silent_s > (SILENT_S if front.ready else START_S)
                    and not self._stopping
                ):
                    log.error(
                        "process %d says nothing for %.0f s; killing it",
                        front.process.pid,
                        silent_s,
                    )
                    kill_group(front.process)
        finally:
            ended.cancel()

    def _heard(self, front: _Alive, door: RespServer) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(front.wire, PACKET_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            front.close()
            return
        message = msgspec.json.decode(data)
        front.heard_at = self._clock.monotonic()
        front.ready = front.ready or "ready" in message
        front.stats = message.get("stats", front.stats)
        if "line" in message and fds:
            task = asyncio.ensure_future(
                door.attach(socket.socket(fileno=fds[0]), **message["line"])
            )
            self._lines.add(task)
            task.add_done_callback(self._attached)

    def _attached(self, task: asyncio.Task[Any]) -> None:
        self._lines.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("a line from another process could not be taken: %s", task.exception())


class _Alive:
    """One process that runs."""

    def __init__(
        self, process: asyncio.subprocess.Process, wire: socket.socket, now: float
    ) -> None:
        self.process = process
        self.wire = wire
        self.heard_at = now
        self.ready = False
        self.stats: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        if self.wire.fileno() >= 0:
            with contextlib.suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_reader(self.wire)
            self.wire.close()
