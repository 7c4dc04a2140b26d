"""
Opens, shares and ends sessions, which own leases that end when their owner has gone.

A connection is a session by itself: its leases end with it. ``SESSION`` makes one that several
connections share, on any node, and that outlives the last of them by its grace. Its record is in
the store (``lua/session_join.lua``); each attach raises a number there, so that a late end of a
connection, or of a grace, does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID, uuid4

from tidewarden.clock import Clock, sleep
from tidewarden.errors import BadArg, Error, NoQuorum, NotFound, Stale, StoreDown
from tidewarden.queue.background import BackgroundTasks
from tidewarden.queue.catalog import Catalog
from tidewarden.queue.shards.resharding import Resharded
from tidewarden.queue.shards.shard import Shard
from tidewarden.queue.task import check_range
from tidewarden.store.reply_errors import NotSent

from .session import Held, Session, Shared, gone
from .session_counts import SessionCounts
from .session_expiry import SessionExpiry
from .session_records import SessionRecords

log = logging.getLogger("tidewarden.queue")

LOST_RETRY_S = 0.5
ENTER_TRIES = 10  # half a second apart: as long as a store that is away is waited for
GRACE_MS = 5000
GRACE_MAX_MS = 3_600_000


class Sessions:
    """Opens, shares and closes the sessions of connections."""

    def __init__(
        self,
        catalog: Catalog,
        records: SessionRecords,
        expiry: SessionExpiry,
        background: BackgroundTasks,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._expiry = expiry
        self._background = background
        self._clock = clock
        self._shared: dict[str, Shared] = {}
        self.counted = SessionCounts(catalog.user_limits.sessions)
        self.open_ones: set[Session] = set()

    # --- a connection's own

    def open(self, user: str = "default") -> Session:
        """Open a new consumer's session. Close it when its connection goes."""
        session = Session(user)
        self.open_ones.add(session)
        return session

    async def close(self, session: Session) -> None:
        """
        End a connection's waits and leases, because it has gone.

        Its waiting takes take nothing, its leases end at once, as losses (or as its ``how`` says),
        in one batch a shard.

        What belongs to a shared session stays while another connection has it, and for its grace
        after the last one. While the store is away it tries again, until the leases have run out by
        themselves.
        """
        session.closed = True
        self.open_ones.discard(session)
        for take in list(session.takes):
            take.cancel()
        held, session.held = session.held, {}
        if session.joining is not None:
            await asyncio.shield(
                self._background.start(self._leave(session, session.joining, held))
            )
        elif held:
            await asyncio.shield(self.end_soon(held, session.how))

    def end_soon(self, held: dict[tuple[str, str], Held], how: str = "loss") -> asyncio.Task[None]:
        """End these leases, as losses or as releases, however long the store is away."""
        return self._background.start(self._end_all(held, how))

    async def _end_all(self, held: dict[tuple[str, str], Held], how: str) -> None:
        while held:
            ends = {}
            for (queue, task_id), (lease, end_ms, _) in held.items():
                shard = self._catalog.shard_if_known(queue, task_id)
                if shard is None:
                    continue  # it was dropped, with what it held
                ends[queue, task_id] = (shard.end(task_id, lease, how), lease, end_ms, shard)
            for shard in {shard for *_, shard in ends.values()}:
                # who waits here asks behind it: a round trip sooner than by its answer
                shard.wake()
            held = {}
            for name, (future, lease, end_ms, shard) in ends.items():
                try:
                    await future
                except (StoreDown, NoQuorum, Resharded):
                    if end_ms > shard.now_ms:
                        held[name] = (lease, end_ms, 0.0)
                except NotFound:
                    log.debug("%s was dropped, with what was held there", name[0])
                except Error as error:
                    # a shard of a newer format, say: the other shards' need not wait
                    log.warning(
                        "the lease of %s in %s ends by its time: %s", name[1], name[0], error
                    )
            if held:
                await sleep(self._clock, LOST_RETRY_S)

    # --- shared ones

    async def join(
        self, session: Session, user: str, uuid: str = "", grace_ms: int | None = None
    ) -> str:
        """
        Join the connection to the shared session ``uuid``, or a new one; returns its uuid.

        A connection joins one, before it takes.

        Args:
            user: who asks: it is bound to the one who made it.
            grace_ms: how long it outlives its last connection from now on; None: as it is, 5,000
                for a new one.

        Raises: BadArg: the connection has another, or holds tasks of its own; NotFound: unknown,
        ended or another user's; Full: the user may have no further session at this node, or too
        many wait for their grace to end in the cluster; Stale, StoreDown: it may have joined, say
        it again.
        """
        wanted = hex_of(uuid) if uuid else ""
        if grace_ms is not None:
            check_range(grace_ms, "grace_ms", 0, GRACE_MAX_MS)
        if session.joining is None:
            session.joining = asyncio.Lock()
        async with session.joining:
            if session.closed:
                raise BadArg("the connection has closed")
            had = session.shared
            if had is not None and not had.lost:
                if had.user != user or wanted not in ("", had.uuid):
                    raise BadArg(
                        f"this connection is in the session {UUID(had.uuid)}; another one needs"
                        " another connection"
                    )
                wanted = had.uuid
            elif session.held or session.takes:
                raise BadArg(
                    f"this connection holds {len(session.held)} tasks by itself: SESSION comes"
                    " before the first take"
                )
            new = not wanted
            if new:
                self.counted.check(user)
            if grace_ms is None:
                grace_ms = GRACE_MS if new else -1
            await self._attach(session, Shared(wanted or uuid4().hex, user), grace_ms, new)
            return str(UUID(session.uuid))

    async def _attach(self, session: Session, wanted: Shared, grace_ms: int, new: bool) -> None:
        holder = self._catalog.holder
        try:
            number = await self._records.run("join", wanted.uuid, wanted.user, grace_ms, int(new))
        except NotSent:
            raise
        except StoreDown:
            self._background.start(self._unjoin_later(wanted))
            raise
        shared = self._shared.setdefault(wanted.uuid, wanted)
        shared.number, shared.holder = max(shared.number, number), holder
        shared.connections.add(session)
        session.shared, session.held = shared, shared.held
        self.counted.attached(shared.uuid, shared.user)
        if holder != self._catalog.holder:  # this node registered anew meanwhile
            self._background.start(self._rejoin_later(shared))

    async def _unjoin_later(self, wanted: Shared) -> None:
        """
        Make sure whether this node is attached, which is not known.

        It attaches for certain, and leaves unless a connection has joined meanwhile.
        """
        while True:
            await sleep(self._clock, LOST_RETRY_S)
            holder = self._catalog.holder
            try:
                number = await self._records.run("join", wanted.uuid, wanted.user, -1, 0)
            except StoreDown:
                continue
            except Error as error:
                return log.debug("the session %s was not joined: %s", wanted.uuid, error)
            there = self._shared.get(wanted.uuid, wanted)
            there.number, there.holder = max(there.number, number), holder
            if there is wanted:
                self._background.start(self._detach_later(wanted))
            return None

    async def _leave(
        self, session: Session, joining: asyncio.Lock, held: dict[tuple[str, str], Held]
    ) -> None:
        async with joining:
            shared = session.shared
        if shared is None:  # it was refused one, and went on by itself
            await self._end_all(held, session.how)
            return
        shared.connections.discard(session)
        if shared.connections or self._shared.get(shared.uuid) is not shared:
            return
        del self._shared[shared.uuid]
        try:
            await self._detach(shared)
        except Error as error:  # away, or it refused: either way it is said again until it is heard
            log.debug("session %s is left later: %s", shared.uuid, error)
            self._background.start(self._detach_later(shared))

    async def _detach_later(self, shared: Shared) -> None:
        """
        Detach the node from the session once the store is back.

        To repeat it does nothing when the store heard it, or when a connection has joined
        meanwhile.
        """
        while True:
            await sleep(self._clock, LOST_RETRY_S)
            try:
                return await self._detach(shared)
            except StoreDown:
                continue
            except Error as error:
                self.counted.ended(shared.uuid)
                return log.warning("the session %s was not left in order: %s", shared.uuid, error)

    async def _detach(self, shared: Shared) -> None:
        """Detach from the session, as this node's last connection has left. Raises: StoreDown."""
        if shared.holder != self._catalog.holder:
            self.counted.ended(shared.uuid)
            return  # that boot was declared dead, and has left by that
        left_ms = await self._records.run("leave", shared.uuid, shared.number)
        if left_ms == -2:
            # The store has lost the record, or its end was not heard here: nobody will end these
            # but us.
            await self._expiry.release(shared.uuid, [_place(prefix) for prefix in shared.places])
        elif left_ms == 0:
            await self._expiry.end(shared.uuid, shared.number)
        elif left_ms > 0:
            self._expiry.end_in(left_ms, shared.uuid, shared.number)
        if shared.uuid not in self._shared:  # else it has a connection here again
            self.counted.left(shared.uuid, max(0, left_ms))

    # --- taking under one

    def entered(self, shared: Shared, shards: Sequence[Shard]) -> bool:
        """
        Return whether this node may take for the session from these shards.

        It may if it is attached, and the record names them.
        """
        if shared.lost or shared.holder != self._catalog.holder:
            return False
        places = shared.places
        return all(shard.keys[0] in places for shard in shards)

    async def enter(self, shared: Shared, shards: Sequence[Shard]) -> None:
        """
        Note in the record that the session takes from these shards.

        A node that was declared dead, and has not registered anew yet, does so within moments,
        which are waited for. Raises: NotFound: it has ended; Stale; StoreDown.
        """
        places = [f"{shard.queue} {shard.index}" for shard in shards]
        for tries_left in range(ENTER_TRIES, -1, -1):
            try:
                if (
                    shared.holder != self._catalog.holder or tries_left < ENTER_TRIES
                ) and not shared.lost:
                    await self._rejoin(shared)
                if shared.lost:
                    raise gone(shared)
                await self._records.run("enter", shared.uuid, *places)
                break
            except Stale:
                if not tries_left:
                    raise
            await sleep(self._clock, LOST_RETRY_S)
        shared.places.update(shard.keys[0] for shard in shards)

    async def owner(self, session: Session, shard: Shard) -> str:
        """
        Return the uuid of the session that owns the connection's leases in this shard.

        It is "" for the connection's own session; the session's record names the shard by then.

        Raises: NotFound: the session has ended; Stale; StoreDown.
        """
        shared = session.shared
        if shared is not None and not self.entered(shared, (shard,)):
            await self.enter(shared, (shard,))
        return session.uuid

    def rejoin(self) -> None:
        """
        Join the sessions of this node's connections again, because it has registered anew.

        Its former boot left every session.
        """
        for shared in list(self._shared.values()):
            self._background.start(self._rejoin_later(shared))

    async def _rejoin_later(self, shared: Shared) -> None:
        while shared.connections and shared.holder != self._catalog.holder and not shared.lost:
            try:
                await self._rejoin(shared)
            except Error as error:
                log.debug("the session %s was not joined again yet: %s", shared.uuid, error)
                await sleep(self._clock, LOST_RETRY_S)

    async def _rejoin(self, shared: Shared) -> None:
        holder = self._catalog.holder
        try:
            number = await self._records.run("join", shared.uuid, shared.user, -1, 0)
        except NotFound:
            self.lost(shared)
            return
        shared.number, shared.holder = max(shared.number, number), holder
        if not shared.connections:  # the last one left meanwhile
            self._background.start(self._detach_later(shared))

    async def stopped(self, uuid: str) -> None:
        """
        End a session here that :meth:`.SessionExpiry.stop` ended, whichever connections are in it.

        When this returns, the store has done every take of the session that was under way here.
        """
        shared = self._shared.get(uuid)
        if shared is None:
            return
        self.lost(shared)
        try:
            await self._catalog.time()  # it comes behind them, on one connection
        except Error as error:
            log.debug("what the session %s takes yet ends by its time: %s", uuid, error)

    def lost(self, shared: Shared) -> None:
        """
        End a session that ended while this node was cut off, and tell the takes that wait under it.
        """
        shared.lost = True
        self.counted.ended(shared.uuid)
        if self._shared.get(shared.uuid) is shared:
            del self._shared[shared.uuid]
        for session in shared.connections:
            session.held.clear()
            for take in list(session.takes):
                take.fail(gone(shared))

    # --- numbers

    def counts(self) -> dict[str, int]:
        """
        Count shared sessions with connections here, graces that run here, and those ended here.
        """
        return {
            "attached": len(self._shared),
            "detached": self._expiry.running,
            "ended_total": self._expiry.ended,
        }


def hex_of(uuid: str) -> str:
    """Return the 32 digits that the store knows a session by. Raises: BadArg."""
    try:
        return UUID(uuid).hex
    except ValueError:
        raise BadArg(
            f"the session is {uuid[:60]!r}; allowed is a uuid that SESSION answered"
        ) from None


def _place(prefix: str) -> Sequence[str]:
    return prefix[1:-1].split(":", 1)[1].rsplit(":", 1)
