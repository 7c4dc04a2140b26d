"""
Finds the way to the store: one's own server, an embedded one, or whichever of several is primary.

Where the embedded stores of several nodes replicate, Raft says which of them takes the writes. So
Raft runs before anything is asked of the store; elsewhere it begins once the store has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tidewarden.clock import Clock
from tidewarden.cluster.replication.replication import Replication
from tidewarden.cluster.replication.store_changes import StoreChange
from tidewarden.config.addresses import joined, parse_address
from tidewarden.config.load import Config
from tidewarden.config.settings import STORE_ABOVE
from tidewarden.duties import Duties, ending_with
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.raft import RaftMember
from tidewarden.store.embedded.credentials import READER, StoreCredentials
from tidewarden.store.embedded.detour import mac_of
from tidewarden.store.embedded.server import EmbeddedStore
from tidewarden.store.endpoint import PrimaryFinder
from tidewarden.store.near_copy import reader_url

from .check_writable import check_writable
from .own_store import own_store, socket_of
from .raft_signal import RaftSignal
from .waiting_door import waiting_door

log = logging.getLogger("tidewarden.daemon")

SAY_S = 10.0
"""While no primary takes the writes, why not is said at the start and then so often."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Says how this node reaches the store."""

    url: str
    """As further processes are told; a secret."""
    member: RaftMember | None
    """None on a worker. It runs already where stores replicate."""
    signal: RaftSignal
    """Rings when the member's view changes."""
    replication: Replication | None = None
    """Only where this node has one of several stores that replicate."""
    near_url: str = ""
    """How its own copy of the data is read; empty: it has none. A secret."""
    changes: asyncio.Queue[StoreChange] = field(default_factory=asyncio.Queue)
    """What has changed among the stores, for :class:`.store_events.StoreEvents`."""

    @property
    def finder(self) -> PrimaryFinder | None:
        """Return what knows the primary; None: the URL says it."""
        return None if self.replication is None else self.replication.finder


@contextlib.asynccontextmanager
async def store_access(
    config: Config,
    secret: str,
    clock: Clock,
    stopping: asyncio.Event,
    duties: Duties,
    library: bytes,
) -> AsyncIterator[StoreAccess]:
    """
    Start what this node runs of the store, and stop it last.

    ``library``: the scripts that a store which replicates has before it lets clients in.

    Where stores replicate it returns once one of them takes the writes, or ``stopping`` is set.

    Raises: ConfigError: the folder, the port, the members or the secret. StoreDown: the store could
    not be started.
    """
    signal = RaftSignal()
    is_worker = config.node.role == "worker"
    member = None if is_worker else RaftMember(config, secret, clock, signal.ring)
    async with contextlib.AsyncExitStack() as stack:
        if config.replicated and member is not None:
            url = stores_url(config, secret)
            access = _OneOfSeveral(config, secret, clock, stopping, duties, library, member, signal)
            yield await access.open(stack, url)
        elif config.replicated:
            yield StoreAccess(stores_url(config, secret), None, signal)
        elif config.store.url == "embedded":
            url = await stack.enter_async_context(_alone(config, secret, clock, stopping, duties))
            yield StoreAccess(url, member, signal)
        else:
            yield StoreAccess(config.store.url, member, signal)


def stores_url(config: Config, secret: str) -> str:
    """
    Return the URL by which a process finds the primary that takes no part in Raft.

    It names this node's own store first, where it has one. A secret: keep it out of logs.
    """
    node = config.node
    places = [*config.member_stores.values()]
    if node.role != "worker":
        own = config.member_stores.get(node.name)
        places = [socket_of(config), *(place for place in places if place != own)]
    scheme, query = "redis", ""
    if node.tls_cert:
        scheme, query = "rediss", f"?ssl_ca_certs={quote(node.tls_ca or node.tls_cert, safe='')}"
    password = quote(StoreCredentials.of(secret).client, safe="")
    return f"{scheme}+replicated://:{password}@{','.join(places)}{query}"


def own_address(config: Config) -> str:
    """
    Return ``host:port`` at which other nodes reach this node's store.

    Raises: ConfigError: nothing says it.
    """
    place = parse_address(config.address)
    if place is None:
        raise ConfigError(
            [
                "node.advertise: found nothing, and cluster.members does not name this node;"
                " allowed: the host at which other nodes reach it, for its store"
            ]
        )
    return joined(place[0], place[1] + STORE_ABOVE)


class _OneOfSeveral:
    """Opens the way to the primary for a node that has one of several stores."""

    def __init__(
        self,
        config: Config,
        secret: str,
        clock: Clock,
        stopping: asyncio.Event,
        duties: Duties,
        library: bytes,
        member: RaftMember,
        signal: RaftSignal,
    ) -> None:
        self._config, self._clock, self._stopping = config, clock, stopping
        self._library, self._secret = library, secret
        self._credentials = StoreCredentials.of(secret)
        self._duties, self._member, self._signal = duties, member, signal

    async def open(self, stack: contextlib.AsyncExitStack, url: str) -> StoreAccess:
        """Start the store, Raft, and this node's part in the replication; await a primary."""
        config, member = self._config, self._member
        is_ours = await stack.enter_async_context(
            own_store(config, self._credentials, self._clock, self._stopping)
        )
        await member.start()
        stack.push_async_callback(member.stop)
        changes: asyncio.Queue[StoreChange] = asyncio.Queue()
        replication = Replication(
            member,
            config.store_folder,
            Path(socket_of(config)),
            own_address(config),
            self._credentials,
            config,
            self._clock,
            self._duties,
            self._library,
            detour_mac=mac_of(self._secret),
            on_change=changes.put_nowait,
            recover_s=config.store.recover_s,
        )
        await replication.start()
        stack.push_async_callback(replication.stop, gracefully=True, store_ends=is_ours)
        running = asyncio.create_task(replication.run(), name="replication")
        await stack.enter_async_context(ending_with(running, self._stopping))
        async with waiting_door(config, self._clock, member, replication):
            await self._opened(replication)
        near_url = reader_url(socket_of(config), READER, self._credentials.reader)
        return StoreAccess(url, member, self._signal, replication, near_url, changes)

    async def _opened(self, replication: Replication) -> None:
        """Return once a primary takes the writes, or this node is told to stop."""
        said_s = -SAY_S
        stopped = asyncio.ensure_future(self._stopping.wait())
        watching = asyncio.ensure_future(self._member.watch())
        try:
            while True:
                found = asyncio.ensure_future(self._found(replication.finder))
                await asyncio.wait({found, stopped, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
                if stopped.done():
                    found.cancel()
                    await asyncio.gather(found, return_exceptions=True)
                    return
                try:
                    found.result()
                except StoreDown as error:
                    now_s = self._clock.monotonic()
                    if now_s - said_s >= SAY_S:
                        said_s = now_s
                        log.warning("waiting for the store: %s", error)
                    continue
                return
        finally:
            for one in (stopped, watching):
                one.cancel()
            await asyncio.gather(stopped, watching, return_exceptions=True)

    async def _found(self, finder: PrimaryFinder) -> None:
        """Return once the primary takes writes. Raises: StoreDown: none does, yet."""
        config = self._config
        client = f"tidewarden-{config.node.name}-start"
        await check_writable(await finder.find(), config.cluster.name, client, self._clock)


@contextlib.asynccontextmanager
async def _alone(
    config: Config, secret: str, clock: Clock, stopping: asyncio.Event, duties: Duties
) -> AsyncIterator[str]:
    """Yield the URL of a store of this node alone; it is started, watched, and stopped last."""
    folder = Path(config.node.data_dir) / "store"
    password = StoreCredentials.of(secret).client
    embedded = EmbeddedStore(folder, config.store, config.cluster.name, password, clock)
    url = await embedded.start()
    try:
        async with ending_with(duties.begin("embedded store", embedded.run), stopping):
            yield url
    finally:
        await embedded.stop()
