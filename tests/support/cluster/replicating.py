"""Nodes with real stores that replicate, in one process: only Raft is played by an object."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from support.queues.desk import queue_scripts

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.cluster.replication.replication import Replication
from tidewarden.cluster.replication.store_report import StoreReport, read_report
from tidewarden.config.load import Config
from tidewarden.config.settings import Cluster, Node, Store
from tidewarden.duties import Duties
from tidewarden.errors import NoLeader, Timeout
from tidewarden.raft.state import MemberView
from tidewarden.raft.store_facts import StoreFacts, applied
from tidewarden.store.durability.view_library import mark_command
from tidewarden.store.embedded.credentials import DAEMON, StoreCredentials
from tidewarden.store.embedded.store_host import StoreHost

CREDENTIALS = StoreCredentials.of("a cluster secret")
CLUSTER = "c"
COMMIT_S = 0.004
"""Between a proposal and when it is applied everywhere."""


class PlayedRaft:
    """The log of all: one order of commands, applied by whoever can be reached."""

    def __init__(self, names: list[str]) -> None:
        self.voters = frozenset(names)
        self.facts = StoreFacts()
        self.commands: list[tuple[Any, ...]] = []
        self.seats = {name: PlayedSeat(name, self) for name in names}
        self.leading = names[0]

    def reachable(self) -> set[str]:
        return {name for name, seat in self.seats.items() if seat.up}

    def lead(self) -> None:
        """Another leads when the one that did is gone."""
        up = self.reachable()
        if self.leading not in up and 2 * len(up & self.voters) > len(self.voters):
            self.leading = min(up)

    def apply(self, command: tuple[Any, ...]) -> None:
        before, self.facts = self.facts, applied(self.facts, self.voters, command)
        if self.facts is not before:
            self.commands.append(command)
            for seat in self.seats.values():
                seat.learn()


class PlayedSeat:
    """What one node sees of it; see :class:`tidewarden.cluster.replication.raft_stores`."""

    def __init__(self, name: str, raft: PlayedRaft) -> None:
        self.name, self.raft = name, raft
        self._up = True
        self.on_stores: Callable[[], None] = lambda: None
        self.known = StoreFacts()
        self.heard: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self.stands_until = 0.0

    @property
    def up(self) -> bool:
        """Whether it hears the others, and is heard."""
        return self._up

    @up.setter
    def up(self, up: bool) -> None:
        for seat in self.raft.seats.values():  # what was heard until now was
            seat.heard = seat.store_reports()
        if up and not self._up:  # another process, or another link: nothing is stood by over it yet
            self.stands_until = 0.0
        self._up = up

    def learn(self) -> None:
        if self.up and self.known is not self.raft.facts:
            self.known = self.raft.facts
            asyncio.get_running_loop().call_soon(lambda: self.on_stores())

    def is_leader(self) -> bool:
        self.raft.lead()
        return self.up and self.raft.leading == self.name

    def leader(self) -> str | None:
        return self.raft.leading

    def seats(self) -> dict[str, MemberView]:
        return {name: MemberView("", True, True) for name in self.raft.voters}

    def voters(self) -> frozenset[str]:
        return self.raft.voters

    def ended(self) -> frozenset[str]:
        return frozenset()

    def quorum_fault(self) -> str:
        return ""

    def store_facts(self) -> StoreFacts:
        return self.known

    async def look_stores(self) -> StoreFacts:
        return await self.store_command(("look",))

    async def store_command(self, command: tuple[Any, ...]) -> StoreFacts:
        if not self.up or 2 * len(self.raft.reachable()) <= len(self.raft.voters):
            await asyncio.sleep(0.1)
            raise NoLeader("nobody leads")
        await asyncio.sleep(COMMIT_S)
        self.raft.apply(command)
        if not self.up:
            raise Timeout("cut off meanwhile")
        self.learn()
        return self.known

    def say_store(self, report: tuple[Any, ...], now: bool, stands_s: float) -> None:
        self.stands_until = time.monotonic() + stands_s
        if not self.up:
            self.heard[self.name] = (time.monotonic(), report)
            return
        for seat in self.raft.seats.values():
            if seat.up:
                before = seat.heard.get(self.name)
                seat.heard[self.name] = (time.monotonic(), report)
                if before is None or before[1] != report:
                    asyncio.get_running_loop().call_soon(lambda seat=seat: seat.on_stores())

    def store_reports(self) -> dict[str, tuple[float, tuple[Any, ...]]]:
        found, now_s = dict(self.heard), time.monotonic()
        for name, (at, report) in self.heard.items():
            seat = self.raft.seats[name]
            if seat.up and self.up:
                found[name] = max(at, min(now_s, seat.stands_until)), report
        return found


class ReplicatingNode:
    """One node: a store's host, and what keeps its part."""

    def __init__(self, name: str, raft: PlayedRaft, folder: Path, port: int) -> None:
        self.name, self.raft, self.folder, self.port = name, raft, folder, port
        self.seat = raft.seats[name]
        self.clock = SystemClock()
        self.host: StoreHost | None = None
        self.hosting: asyncio.Task[None] | None = None
        self.replication: Replication | None = None

    async def start_store(self) -> None:
        self.host = StoreHost(
            self.folder,
            Store(),
            CREDENTIALS,
            self.clock,
            node=self.name,
            port=self.port,
        )
        await self.host.start()
        self.hosting = asyncio.create_task(self.host.run())

    async def start_node(self) -> None:
        assert self.host is not None
        self.seat.up = True
        self.seat.heard.clear()  # a process that starts has heard nobody
        self.seat.known = self.raft.facts
        config = Config(
            cluster=Cluster(name=CLUSTER), node=Node(name=self.name, base_port=self.port - 3)
        )
        self.replication = Replication(
            self.seat,
            self.folder,
            self.host.socket_path,
            f"127.0.0.1:{self.port}",
            CREDENTIALS,
            config,
            self.clock,
            Duties(self.clock),
            queue_scripts().library,
        )
        await self.replication.start()

    async def stop_node(self, gracefully: bool = False, store_ends: bool = False) -> None:
        if self.replication is not None:
            await self.replication.stop(gracefully=gracefully, store_ends=store_ends)
            self.replication = None
        self.seat.up = False

    async def stop_store(self) -> None:
        if self.host is not None and self.hosting is not None:
            self.hosting.cancel()
            await asyncio.gather(self.hosting, return_exceptions=True)
            self.wake_store()
            await self.host.stop()

    async def kill_host(self) -> None:
        """Node and store at once, and nobody starts the store again."""
        assert self.host is not None
        self.seat.up = False
        if self.hosting is not None:
            self.hosting.cancel()
        self.host.kill()
        await self.stop_node()
        await self.stop_store()

    def kill_store(self) -> None:
        """The host starts it again."""
        assert self.host is not None
        assert self.host.pid is not None
        os.kill(self.host.pid, signal.SIGKILL)

    def freeze_store(self) -> None:
        assert self.host is not None
        assert self.host.pid is not None
        os.kill(self.host.pid, signal.SIGSTOP)

    def wake_store(self) -> None:
        if self.host is not None and self.host.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # killed, and not waited for yet
                os.kill(self.host.pid, signal.SIGCONT)

    def lose_disk(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def report(self) -> StoreReport | None:
        said = self.seat.heard.get(self.name)
        return read_report(said[1]) if said else None

    def client(self) -> Redis:
        """As the node itself, who may look at it whatever it is."""
        assert self.host is not None
        return Redis(
            unix_socket_path=str(self.host.socket_path),
            username=DAEMON,
            password=CREDENTIALS.daemon,
            single_connection_client=True,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        )

    async def call(self, *words: str | int) -> Any:
        async with self.client() as client:
            return await client.execute_command(*words)


class ReplicatingNodes:
    """Several of them, and a writer."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        names = [f"n{i}" for i in range(count)]
        first = free_ports(1)
        self.raft = PlayedRaft(names)
        ports = [free_ports(1) for _ in range(count - 1)]
        self.nodes = {
            name: ReplicatingNode(name, self.raft, folder / name / "store", port)
            for name, port in zip(names, [first, *ports], strict=True)
        }

    @property
    def facts(self) -> StoreFacts:
        return self.raft.facts

    @property
    def primary(self) -> ReplicatingNode:
        return self.nodes[self.facts.primary]

    @property
    def others(self) -> list[ReplicatingNode]:
        return [node for name, node in self.nodes.items() if name != self.facts.primary]

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start_store()
        for node in self.nodes.values():
            await node.start_node()

    async def until(self, condition: Callable[[], Any], limit_s: float = 20.0) -> float:
        """Wait; return the seconds that it took."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            told = {name: node.report for name, node in self.nodes.items()}
            raise AssertionError(f"{self.facts}: {told}") from None
        return time.monotonic() - began

    async def in_sync(self, *names: str) -> float:
        """Wait until exactly these are in the set with the stores that they run now."""

        def whole() -> bool:
            return {(name, self.nodes[name].host.incarnation) for name in names} == {  # type: ignore[union-attr]
                tuple(member) for member in self.facts.in_sync
            } and self.is_open()

        return await self.until(whole)

    def is_open(self, view: int = 0) -> bool:
        report = self.primary.report if self.facts.view else None
        return (
            report is not None
            and self.facts.view >= view
            and report.serves_view == self.facts.view
            and report.incarnation == self.facts.incarnation
        )

    async def write(self, key: str, value: str) -> None:
        """Write by the primary's finder, as a link of any node does; OKed by the whole set."""
        async with asyncio.timeout(20):
            while not await self._written(key, value):
                await asyncio.sleep(0.005)

    async def _written(self, key: str, value: str) -> bool:
        node = next(one for one in self.nodes.values() if one.replication and one.seat.up)
        assert node.replication is not None
        try:
            url = await node.replication.finder.find()
        except Exception:
            return False
        try:
            async with Redis.from_url(
                url, decode_responses=True, retry=Retry(NoBackoff(), 0)
            ) as to:
                await to.set(key, value)
                _, _, in_sync = await to.execute_command(*mark_command(CLUSTER))
                members = in_sync.split()
                _, offset, *_ = await to.execute_command("ROLE")
                if not members:
                    return False
                if len(members) > 1:
                    await to.execute_command("WAIT", len(members) - 1, 60)
                info = await to.info("replication")
                acks = {
                    row["ip"]: row["offset"]
                    for name, row in info.items()
                    if name.startswith("slave") and isinstance(row, dict)
                }
                own = ".".join(self.facts.primary_member)
                return info["role"] == "master" and all(
                    acks.get(one, -1) >= int(offset) for one in members if one != own
                )
        except (RedisError, OSError):
            return False

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop_node()
        for node in self.nodes.values():
            await node.stop_store()


@contextlib.asynccontextmanager
async def replicating(folder: Path, count: int = 3) -> AsyncIterator[ReplicatingNodes]:
    """Started nodes, all in sync."""
    nodes = ReplicatingNodes(folder, count)
    try:
        await nodes.start()
        await nodes.in_sync(*nodes.nodes)
        yield nodes
    finally:
        await nodes.stop()
