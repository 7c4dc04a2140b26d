"""A primary and its replicas on free ports, started for a test, and a process of a node on them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
from support.queues.desk import CLUSTER, queue_scripts
from support.store.sentinels import wait
from support.store.servers import serve

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.queue.queues import Queues
from tidewarden.store import StoreConnection
from tidewarden.store.connection import pack
from tidewarden.store.durability.durability import Durability
from tidewarden.store.preflight import StoreServer, check_store
from tidewarden.tokens.system_queues import system_queues

LIMIT_MS, PATIENT_MS = 400, 60_000
"""
How long a group is waited for that will not come, and any other: the latter surely comes, on a
starved machine too.
"""


class Replicas:
    """``ports[0]`` is the primary's. ``members``: what each is called, where they are replicated."""

    def __init__(
        self, binary: str, folder: Path, count: int, *options: str, members: Sequence[str] = ()
    ) -> None:
        self._binary, self.folder, self._options = binary, folder, options
        self._members = list(members)
        first = free_ports(1 + count)
        self.ports = list(range(first, first + 1 + count))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for port in self.ports:
            self.start(port, of=self.ports[0] if port != self.ports[0] else 0)
        self.whole()

    def start(self, port: int, of: int = 0, member: str = "") -> None:
        """
        Start the server of this port, as a replica ``of`` another; its data is there again.

        ``member``: what it is called from now on.
        """
        home = self.folder / str(port)
        home.mkdir(exist_ok=True)
        role = ("--replicaof", "127.0.0.1", str(of)) if of else ()
        quick = ("--repl-diskless-sync-delay", "0", "--bind", "127.0.0.1", "--port", str(port))
        if member or self._members:
            quick += ("--replica-announce-ip", member or self._members[self.ports.index(port)])
        self.processes[port], _ = serve(self._binary, home, *quick, *role, *self._options)

    def client(self, port: int = 0) -> Any:
        """A client of one of them, the primary's by default."""
        return redis.Redis(port=port or self.ports[0], decode_responses=True)

    def url(self, port: int = 0) -> str:
        """As store.url has it."""
        return f"redis://127.0.0.1:{port or self.ports[0]}"

    def whole(self) -> None:
        """Return when every replica answers a WAIT."""
        with self.client() as client:

            def all_there() -> bool:
                client.set("probe", "1", px=60_000)
                return (
                    int(client.execute_command("WAIT", len(self.ports) - 1, 100))
                    >= len(self.ports) - 1
                )

            wait(all_there)

    @contextlib.contextmanager
    def stopped(self, *ports: int) -> Iterator[None]:
        """SIGSTOP, then SIGCONT."""
        for port in ports:
            self.processes[port].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for port in ports:
                self.processes[port].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End what was started here."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(60)


class Seat:
    """The links, the commits and the queues of one process, on a store of one's own."""

    queues: Queues
    commits: Durability
    server: StoreServer

    def __init__(self, url: str, commit_url: str = "", **store: Any) -> None:
        flags = {f"store.{name}": str(value) for name, value in store.items()}
        self.config = load(None, {}, {"cluster.name": CLUSTER, "store.url": url} | flags)
        self.clock = SystemClock()
        self.scripts = queue_scripts()
        self.data = StoreConnection(url, "data", self.clock, on_up=self.scripts.load_commands)
        self._commit_url = commit_url or url

    async def start(self) -> None:
        """Connect and build."""
        await self.data.start(wait_s=60)
        self.server = await check_store(self.data, CLUSTER)
        beside: Callable[[StoreConnection], StoreConnection] = lambda _: StoreConnection(  # noqa: E731
            self._commit_url, "commit", self.clock
        )
        self.commits = Durability(
            self.config.store, CLUSTER, self.clock, beside, embedded=False, server=self.server
        )
        self.queues = Queues(
            self.config,
            self.data,
            self.scripts,
            self.clock,
            views=False,
            system_queues=system_queues(),
            durability=self.commits,
        )
        self.queues.catalog.holder = "n0.1"
        limit(self.commits, PATIENT_MS)

    async def stop(self) -> None:
        """End it."""
        await self.commits.stop()
        await self.data.stop()


@contextlib.asynccontextmanager
async def seat(url: str, commit_url: str = "", **store: Any) -> AsyncIterator[Seat]:
    """A seat for a test, ``store`` its settings."""
    made = Seat(url, commit_url, **store)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def limit(commits: Durability, limit_ms: int) -> None:
    """From now on a group is waited for so long."""
    commits._store = replace(commits._store, commit_ms=limit_ms)
    for commit in commits._made.values():
        commit._held.limit_ms = limit_ms
        commit._waits = tuple(
            (pack(command), least) for command, least in commit._requirement.commands(limit_ms)
        )
        commit._held.expire()  # counts on it that all wait equally long


@contextlib.contextmanager
def hurried(commits: Durability, limit_ms: int = LIMIT_MS) -> Iterator[None]:
    """
    Whoever begins to wait for a group now is told so soon that there is none; else a starved
    machine may take its time.
    """
    limit(commits, limit_ms)
    try:
        yield
    finally:
        limit(commits, PATIENT_MS)


@contextlib.contextmanager
def stopped(one: Seat, pair: Replicas) -> Iterator[None]:
    """The replica does not answer, and whoever waits for it is told so soon."""
    with hurried(one.commits), pair.stopped(pair.ports[1]):
        yield


def elapsed_ms(since: float) -> float:
    """Milliseconds since ``time.monotonic()`` was that."""
    return (time.monotonic() - since) * 1000
