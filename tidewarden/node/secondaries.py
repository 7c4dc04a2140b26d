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
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import Config, User
from tidewarden.errors import ConfigError, Error
from tidewarden.peer_line import UnreachableNode
from tidewarden.server.consumers.questions import Ask, ConsumersTold
from tidewarden.server.resp.server import RespServer
from tidewarden.server.stats_merge import add_up, lasting
from tidewarden.server.traffic.node_traffic import NodeTraffic, PartsOfProcess
from tidewarden.server.traffic.tables import Part
from tidewarden.server.traffic.tap import TapFilter, TapNews
from tidewarden.store.child_process import how_ended, kill_group, start_child, stop_child
from tidewarden.store.preflight import StoreServer

from .secondary import ALONE, ASK, FAULT, TAPS, Orders

log = logging.getLogger("tidewarden.fronts")

START_S = 30.0
SILENT_S = 10.0  # one that has told nothing for so long hangs, and is killed
AGAIN_FIRST_S, AGAIN_LAST_S = 0.1, 5.0
STEADY_S = 30.0  # one that ran for so long is started again at once
PACKET_BYTES = 1 << 18
ASK_S = 1.0  # for an answer about consumers: less than another node waits for all of them


class Secondaries:
    """
    Starts the further processes of a node, and starts each again when it ends.

    ``register(name)`` registers a process's name anew. ``near_url``: how they read the node's own
    copy of the data; empty: it has none. ``traffic``: what they count, and what their taps show,
    is added to it.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        register: Callable[[str], Awaitable[None]],
        near_url: str = "",
        *,
        traffic: NodeTraffic,
    ) -> None:
        self._traffic = traffic
        traffic.recorder.taps.spread = self._tell_taps
        self._config = config
        self._clock = clock
        self._register = register
        self._near_url = near_url
        self._keepers: list[asyncio.Task[None]] = []
        self._alive: dict[int, _Child] = {}
        self._gone: dict[str, Any] = {}  # the counters of those that have ended
        self._lines: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._fault, self._alone = "", False
        self.restarts = 0

    async def start(self, url: str, store: StoreServer, door: RespServer) -> None:
        """
        Start ``node.processes`` − 1 of them. ``door`` takes the connections that they hand over.

        Raises: ConfigError: not all serve within thirty seconds.
        """
        # their secrets are not for them
        config = replace(self._config, providers={}, webhooks={}, companions={})
        for number in range(1, self._config.node.processes):
            orders = Orders(config, number, url, store, door.port, self._near_url)
            keeper = asyncio.create_task(self._keep(orders, door), name=f"process {number}")
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
        children = list(self._alive.values())
        await asyncio.gather(
            *(stop_child(child.process, self._clock, grace_s) for child in children)
        )
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, *self._lines, return_exceptions=True)

    def reload(self, users: Sequence[User]) -> None:
        """Hand these users to all processes, also to those that are started later."""
        self._config = replace(self._config, users=tuple(users))
        for number, child in self._alive.items():
            with tempfile.TemporaryFile() as file:
                pickle.dump(self._config.users, file)
                file.flush()
                try:
                    socket.send_fds(child.wire, [b"users"], [file.fileno()])
                except OSError as error:
                    log.warning(
                        "process %d could not be told the users and is started again: %s",
                        number,
                        error,
                    )
                    kill_group(child.process)

    def tell_fault(self, fault: str, alone: bool) -> None:
        """
        Tell all processes why no store can take the writes; empty: one may.

        ``alone``: because no majority of the nodes is in reach.
        """
        self._fault, self._alone = fault, alone
        word = (ALONE if alone else FAULT) + fault.encode()
        self._tell(word, "does not know why no store is open")

    def _tell_taps(self, taps: Sequence[tuple[int, TapFilter]]) -> None:
        """Have all processes show what these taps want to see, and no more."""
        self._tell(TAPS + msgspec.json.encode(taps), "shows no taps")

    def _tell(self, word: bytes, otherwise: str) -> None:
        for number, child in self._alive.items():
            try:
                child.wire.send(word)
            except OSError as error:
                log.warning("process %d %s: %s", number, otherwise, error)

    def serving(self) -> int:
        """Return how many serve now."""
        return sum(child.ready for child in self._alive.values())

    def stats(self, part: str) -> list[dict[str, Any]]:
        """
        Return each process's latest figures of a part, ``resp`` or ``node``.

        The last entry is what remains of those that have ended.
        """
        return [child.stats.get(part, {}) for child in self._alive.values()] + [
            self._gone.get(part, {})
        ]

    def shown(self) -> list[dict[str, Any]]:
        """Return what the node's status shows of each."""
        return [
            {
                "process": number,
                "pid": child.process.pid,
                "ready": child.ready,
                "connections": child.stats.get("resp", {}).get("connections", 0),
            }
            for number, child in sorted(self._alive.items())
        ]

    async def ask(self, ask: Ask) -> list[ConsumersTold]:
        """Have all processes answer a question about consumers; who does not is named."""
        return list(
            await asyncio.gather(*(self._told(child, ask) for child in self._alive.values()))
        )

    async def _told(self, child: _Child, ask: Ask) -> ConsumersTold:
        number, answer = child.expect()
        try:
            child.wire.send(ASK + msgspec.msgpack.encode((number, ask)))
            async with asyncio.timeout(ASK_S):
                return await answer
        except TimeoutError:
            why = f"it has not answered within {ASK_S:g} s"
        except OSError as error:
            why = f"it could not be asked: {error}"
        finally:
            child.asked.pop(number, None)
        return ConsumersTold(
            silent=(UnreachableNode(f"{self._config.node.name}/{child.number}", why),)
        )

    async def _keep(self, orders: Orders, door: RespServer) -> None:
        number = orders.number
        pause_s = AGAIN_FIRST_S
        while True:
            began = self._clock.monotonic()
            try:
                child = await self._launch(orders, door)
            except OSError as error:  # no process, or no file, to be had
                log.error(
                    "process %d of this node cannot be started: %s; tried again", number, error
                )
                await sleep(self._clock, AGAIN_LAST_S)
                continue
            try:
                await self._watch(child)
            finally:
                child.close()
                kill_group(child.process)
                self._alive.pop(number, None)
                for part, stats in child.stats.items():
                    self._gone[part] = add_up(self._gone.get(part, {}), lasting(stats))
            if self._stopping:
                return
            self.restarts += 1
            log.warning(
                "process %d of this node %s; starting it again",
                number,
                how_ended(child.process.returncode),
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

    async def _launch(self, orders: Orders, door: RespServer) -> _Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders = replace(orders, config=replace(orders.config, users=self._config.users))
        with tempfile.TemporaryFile() as file, theirs:
            pickle.dump(orders, file)
            file.seek(0)
            keep = (file.fileno(), theirs.fileno())
            argv = [sys.executable, "-m", "tidewarden.node.secondary", *map(str, keep)]
            process = await start_child(argv, output=sys.stderr.buffer, keep_fds=keep)
        parts = PartsOfProcess(self._traffic)
        child = _Child(orders.number, process, ours, self._clock.monotonic(), parts)
        self._alive[orders.number] = child
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._heard, child, door)
        return child

    async def _watch(self, child: _Child) -> None:
        """Return when the process has ended; kill it when it says nothing any more."""
        ended = asyncio.ensure_future(child.process.wait())
        try:
            while not ended.done():
                pause = asyncio.ensure_future(sleep(self._clock, SILENT_S / 4))
                await asyncio.wait({ended, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                silent_s = self._clock.monotonic() - child.heard_at
                if (
                    not ended.done()
                    and silent_s > (SILENT_S if child.ready else START_S)
                    and not self._stopping
                ):
                    log.error(
                        "process %d says nothing for %.0f s; killing it",
                        child.process.pid,
                        silent_s,
                    )
                    kill_group(child.process)
        finally:
            ended.cancel()

    def _heard(self, child: _Child, door: RespServer) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(child.wire, PACKET_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            child.close()
            return
        message = msgspec.json.decode(data)
        child.heard_at = self._clock.monotonic()
        if "ready" in message:
            child.ready = True
            self._tell_taps(self._traffic.recorder.taps.shown())
            self.tell_fault(self._fault, self._alone)
        child.stats = message.get("stats", child.stats)
        if "traffic" in message:
            child.parts.hear(msgspec.convert(message["traffic"], Part))
        if "tap" in message:
            self._traffic.recorder.taps.hear(msgspec.convert(message["tap"], TapNews))
        if "told" in message:
            child.hear(*message["told"])
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


class _Child:
    """Holds one process that runs."""

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        wire: socket.socket,
        now: float,
        parts: PartsOfProcess,
    ) -> None:
        self.number = number
        self.asked: dict[int, asyncio.Future[ConsumersTold]] = {}
        """The questions under way, by number."""
        self._questions = 0
        self.parts = parts
        self.process = process
        self.wire = wire
        self.heard_at = now
        self.ready = False
        self.stats: dict[str, dict[str, Any]] = {}

    def expect(self) -> tuple[int, asyncio.Future[ConsumersTold]]:
        """Return the number of a new question, and the future of its answer."""
        self._questions += 1
        future: asyncio.Future[ConsumersTold] = asyncio.get_running_loop().create_future()
        self.asked[self._questions] = future
        return self._questions, future

    def hear(self, number: int, answer: str) -> None:
        """Take the answer to a question, msgpack in base64; one too late is for nobody."""
        future = self.asked.pop(number, None)
        if future is not None and not future.done():
            future.set_result(msgspec.msgpack.decode(b64decode(answer), type=ConsumersTold))

    def close(self) -> None:
        if self.wire.fileno() >= 0:
            with contextlib.suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_reader(self.wire)
            self.wire.close()
