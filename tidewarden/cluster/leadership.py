"""
Leads the cluster from this node, from its election by Raft until its term is over.

An epoch is committed, the store's fence written, then the leader's tasks run. Raft's word is no
permission (it may believe two leaders at once); writes under a term are judged at the store by
``(epoch, holder)``. A term ends when Raft names another leader, or when a script answers STALE.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from tidewarden.clock import Clock, rest, sleep
from tidewarden.errors import Error, NoLeader, Stale, StoreDown, Timeout
from tidewarden.raft.elector import Elector
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient

log = logging.getLogger("tidewarden.cluster")

RETRY_S = 0.2
LOOK_S = 1.0
PATIENCE = 8
"""
How many looks in a row may go without the store's answer before a leader lets another lead; twice
as many each time that did not help …
"""
PATIENCE_MAX = 256
"""… up to this: while no node reaches the store, leadership need not go round and round."""
_STORED = re.compile(r"is at epoch (\d+) held by ")  # as claim.lua and fence.lua say it

Duties = Callable[[int, str], Awaitable[None]]


class Leadership:
    """
    Runs ``duties(epoch, holder)`` while this node leads.

    :attr:`epoch` is the epoch it leads under, 0 when it does not. ``holder`` is asked at each
    claim: a node that registered anew claims anew. ``reached`` tells when the store last answered
    this node, monotonic seconds: a leader that cannot reach it hands leadership to a node that can,
    because Raft alone would keep it.
    """

    def __init__(
        self,
        cluster: str,
        raft: Elector,
        link: StoreClient,
        scripts: Scripts,
        clock: Clock,
        holder: Callable[[], str],
        duties: Duties,
        reached: Callable[[], float] | None = None,
    ) -> None:
        self._key = f"{{{cluster}}}:fence"
        self._raft = raft
        self._link = link
        self._scripts = scripts
        self._clock = clock
        self._holder = holder
        self._duties = duties
        self._reached = reached
        self._changed = asyncio.Event()
        self._claims_again = False
        self.epoch = 0
        self.last_epoch = 0
        # the highest epoch that a refusal named: a shard's fence may be ahead of the cluster's
        self._seen = 0
        self.terms = 0

    def raft_changed(self) -> None:
        """Note that Raft's view changed: a term of ours may be over."""
        self._changed.set()

    def store_changed(self) -> None:
        """
        Note that another store may be connected: it may have a former leader's fence.

        A claim is not waited for by the stores in sync, so that a leader begins its duties although
        fewer than a majority of them are; so a new primary may not have it.
        """
        self._claims_again = True
        self._changed.set()

    async def run(self) -> None:
        """Lead whenever Raft says so, until cancelled."""
        both = {asyncio.ensure_future(self._lead()), asyncio.ensure_future(self._watch())}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for one in done:
                one.result()
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _watch(self) -> None:
        """
        Let another lead when the store does not answer here.

        Looks are counted, not time: a paused process is no proof.
        """
        if self._reached is None:
            return
        patience, looks, last = PATIENCE, 0, self._reached()
        while True:
            await self._raft.elected()
            await rest(self._clock, LOOK_S)
            # Raft does not know that this node registered anew: workers know the leader by that
            self._changed.set()
            if (at := self._reached()) != last:
                patience, looks, last = PATIENCE, 0, at
                continue
            looks = looks + 1 if self._raft.is_leader() else 0
            if looks < patience:
                continue
            patience, looks = min(2 * patience, PATIENCE_MAX), 0
            try:
                await self._raft.transfer(None)
                log.warning("the store does not answer here; another member leads now")
            except Error as error:
                log.debug("the store does not answer here, and no other member leads: %s", error)

    async def _lead(self) -> None:
        while True:
            await self._raft.elected()
            try:
                await self._one_term()
            except Stale as error:
                self._seen = max(self._seen, stored_epoch(error))
                log.warning("stepping down: %s", error)
            except (StoreDown, NoLeader, Timeout) as error:
                log.warning("no term could be begun, or it ended: %s", error)
            except Error:
                log.exception("the leader's duties failed")
            self.epoch = 0
            await sleep(self._clock, RETRY_S)

    async def _one_term(self) -> None:
        holder = self._holder()
        boot = int(holder.rpartition(".")[2])
        raw = await self._link.call("HGET", self._key, "epoch")
        epoch = await self._raft.claim(boot, max(int(raw or 0), self._seen))
        await self._claim(epoch, holder)
        self.epoch = self.last_epoch = epoch
        self.terms += 1
        log.info("leading under epoch %d as %s", epoch, holder)
        await self._while_leading(asyncio.ensure_future(self._duties(epoch, holder)), holder)

    async def _claim(self, epoch: int, holder: str) -> None:
        """Write the epoch into the store's fence."""
        self._claims_again = False
        try:
            await self._scripts.run(self._link, "cluster.claim", [self._key], [epoch, holder])
        except (StoreDown, Timeout):
            self._claims_again = True
            raise

    async def _while_leading(self, duties: asyncio.Future[None], holder: str) -> None:
        """
        Wait for the duties' end, and cancel them when the term is over.

        That is when Raft no longer names this node, or when it registered anew.
        """
        try:
            term = self._raft.term
            while self._raft.is_leader() and self._raft.term == term and self._holder() == holder:
                self._changed.clear()
                if self._claims_again:
                    with contextlib.suppress(StoreDown, Timeout):  # Then at the next look.
                        await self._claim(self.epoch, holder)
                changed = asyncio.ensure_future(self._changed.wait())
                both: set[asyncio.Future[Any]] = {duties, changed}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if duties.done():
                    duties.result()
                    return
            log.info("the term of epoch %d is over", self.epoch)
        finally:
            self.epoch = 0
            duties.cancel()
            await asyncio.gather(duties, return_exceptions=True)


def stored_epoch(refusal: Stale) -> int:
    """Return the epoch that a fence is at, as its refusal says; 0 when it says none."""
    found = _STORED.search(str(refusal))
    return int(found[1]) if found else 0
