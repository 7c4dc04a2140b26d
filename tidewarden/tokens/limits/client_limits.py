"""
Limits one client's requests from this node: ``acquire()``, then ``release()`` with the answer.

All that holds requests back ends here: how many are under way on this node, its share of the node,
silence that may be this node's own, the host's rate, and, for all nodes together, the client's
record: its rate, its hold, its quarantine (:mod:`.judgement`). While nothing is the matter it costs
no call to the store.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from msgspec.structs import replace

from tidewarden import errors
from tidewarden.clock import sleep, sleep_or
from tidewarden.config.error_classes import Kind
from tidewarden.config.load import Provider
from tidewarden.queue import Taken
from tidewarden.tokens.provider.token_response import Verdict

from . import judgement, throttle
from .adaptive_concurrency import AdaptiveConcurrency
from .answer_counts import AnswerCounts, Ended, Silence, kind_of
from .circuit_breaker import CircuitBreaker
from .client_record import Change, ClientRecord, SharedRecord
from .judgement import Assessment
from .node_limits import NodeLimits

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 30.0  # How old a node's view of a client may be that seemed free.
TELL_S = 30.0  # How often good answers are told while nothing is the matter …
TELL_RATED_S = 1.0  # … and while a rate is to grow by them.
TELL_APART_S = 0.25
NEVER_S = float("inf")
# Who was refreshed well before who was never tried, and those before who fails.
PROBES_BY = (0, 1, 2)
PERMIT_S_MIN, PERMIT_S_MAX = 0.01, 2.0  # Until a permit is asked for again.
PROBE_AGAIN_S = 1.0  # After no account was ready that could probe.
SILENT_STREAK = 3  # Requests in a row without an answer that are no single account's matter.


@dataclass(frozen=True, slots=True)
class Permit:
    """Says how many requests may begin now; if none, when to ask again."""

    requests: int
    wait_s: float = 0.0
    probe: bool = False
    """The permit is for a probe, past the queue's pause."""


class ClientLimits:
    """Limits the requests of one provider's client on one node."""

    def __init__(self, provider: Provider, queue: str, shared: NodeLimits, lease_ms: int) -> None:
        """Let a probe take ``lease_ms``; if its node dies, another probe follows then."""
        self.provider = provider
        self._shared = shared
        self._clock = shared.clock
        self._lease_ms = lease_ms
        self.known = SharedRecord(provider, queue, shared)
        """The client's record, which all nodes share."""
        self.concurrency = AdaptiveConcurrency(*provider.concurrency_bounds)
        """How many requests may be under way on this node."""
        self.breaker = CircuitBreaker(provider, max(10, self.concurrency.size))
        shared.breakers[provider.name] = self.breaker
        self._counts = AnswerCounts(shared.clock.monotonic())
        self.unanswered: set[str] = set()
        """
        The accounts whose refreshes began and have no answer yet, which the concurrency bounds.
        """
        self.freed = asyncio.Event()
        """Set when there may be room for another; :meth:`room` clears it."""
        self._probing: set[str] = set()
        self._looked_s = float("-inf")
        self._told_s = shared.clock.monotonic()
        self._tell_at_s = NEVER_S
        self._news = False
        """Answers were counted that other nodes should hear of soon."""
        self._sleeping: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        shared.hosts.add(provider)

    def carry_over(self, former: ClientLimits) -> None:
        """
        Take over the state of this node's former limits of the client, whose settings have changed.

        The state that all nodes share lies in the store.
        """
        self.breaker = self._shared.breakers[self.provider.name] = former.breaker
        self.breaker.provider = self.provider
        if former.provider.concurrency_bounds == self.provider.concurrency_bounds:
            self.concurrency = former.concurrency

    async def change(self, change: Change) -> None:
        """Change the client's record. Raises what the store raises."""
        await self.known.change(change)
        if self.known.record.recovering:  # That it is over is to be told, too.
            self._tell_in(throttle.CALM_MS / 1000 + 1)

    # --- before a request

    @property
    def rated(self) -> bool:
        """Return whether the provider's host has a rate."""
        return self._shared.hosts.rated(self.provider)

    @property
    def learnt_rate(self) -> float:
        """
        Return the requests a second that the provider seems to bear; 0: it has shown no bound.
        """
        rate = self.known.record.rate
        return rate.per_second if rate is not None else 0.0

    @property
    def held(self) -> bool:
        """Return whether a hold, or this node's circuit breaker, keeps requests back."""
        return self.breaker.open or self.known.record.hold is not None

    def room(self, asked: int, *, plenty: bool) -> int:
        """
        Return how many more tasks may be asked for, while ``asked`` are being taken already.

        ``plenty`` says that the last take got as many tasks as it asked for.
        """
        self.freed.clear()
        free = self._free(self._clock.monotonic(), len(self.unanswered) + asked)
        # Else a take waits, and asks for all there is room for.
        if free == 0 and (plenty or not asked):
            self.concurrency.full()
        return min(free, self._shared.fair_share.free(self.provider.name) - asked)

    async def wait_for_room(self, *, begun_all: bool) -> None:
        """
        Return when there may be room for another request.

        ``begun_all``: as many are begun as may be, whatever is unanswered.
        """
        now_s = self._clock.monotonic()
        pause_s = self.breaker.opens_in_s(now_s)
        if pause_s > 0:
            await sleep(self._clock, pause_s)
        elif begun_all or not self._free(now_s, len(self.unanswered)):
            await self.freed.wait()
        else:
            await self._shared.fair_share.wait(self.provider.name)

    def begin(self, account: str) -> None:
        """
        Note that an account's task is taken and its refresh begins.

        :meth:`end` follows, and :meth:`release` if it is asked for.
        """
        self._shared.fair_share.take(self.provider.name)
        self.unanswered.add(account)

    def end(self, account: str) -> None:
        """Note that a refresh that began has ended, its answer stored, or was never sent."""
        self.answered(account)
        self._shared.fair_share.leave(self.provider.name)
        if account in self._probing:
            self._probing.discard(account)
            self._unclaim()

    async def acquire(self, wanted: int, *, host: bool = True) -> Permit:
        """
        Acquire a permit for at most ``wanted`` requests.

        It comes out of the client's rate and, unless ``host`` is False, the host's. Raises what the
        store raises.
        """
        if not host:
            return await self._acquire(wanted)
        granted, wait_s = await self._shared.hosts.ask(self.provider, wanted)
        permit = await self._acquire(granted) if granted else Permit(0, wait_s)
        await self._shared.hosts.give_back(self.provider, granted - permit.requests)
        return permit

    async def acquire_host(self) -> bool:
        """Acquire one request of the host's rate alone. Raises what the store raises."""
        return bool((await self._shared.hosts.ask(self.provider, 1))[0])

    async def wait_for_permit(self, wait_s: float) -> None:
        """
        Return when a permit may be had that was refused for ``wait_s``.

        Sooner when nothing holds the client back any more, and each two seconds: other nodes may
        have found that out.
        """
        until_s = self._clock.monotonic() + min(max(wait_s, PERMIT_S_MIN), PERMIT_S_MAX)
        await sleep_or(self.known.opened, self._clock, until_s)

    def acquire_alone(self, under_way: int) -> bool:
        """
        Acquire one request while the store is away; return whether it was granted.

        It comes out of this node's part of every rate, and is counted if granted.
        """
        now_s = self._clock.monotonic()
        free = self._free(now_s, under_way)
        return free > 0 and self._shared.hosts.alone(self.provider, now_s)

    def _free(self, now_s: float, under_way: int) -> int:
        return self.breaker.allowed(now_s, self.concurrency.size, under_way)

    async def give_back(self, of_client: int, of_host: int) -> None:
        """
        Give requests back that were granted and not sent.

        Never raises: part of a rate is lost then.
        """
        try:
            await self.known.give_back(of_client)
            await self._shared.hosts.give_back(self.provider, of_host)
        except errors.Error as error:
            log.debug("some of the rate of %s is lost: %s", self.provider.name, error)

    async def take_probe(self) -> Taken | None:
        """
        Lease the account that probes, until past the pause.

        None: there was none while its request would end within the claim to probe.
        """
        shared, lease_ms = self._shared, self._lease_ms
        until_s = self._clock.monotonic() + lease_ms / 1000 - self.provider.timeout_s
        while self._clock.monotonic() < until_s and (held := self.known.record.hold) is not None:
            # By turns: some graces last for weeks, and who is in one may fail for good.
            saving = held.probes % 2 == 0
            for level in PROBES_BY:
                for shard in await shared.shards_of(self.known.queue):
                    drawn = shared.dice.getrandbits(31)
                    task = await shared.accounts.probe(
                        self.known.queue, shard, lease_ms, level=level, saving=saving, drawn=drawn
                    )
                    if task is not None:
                        self._probing.add(task.id)
                        return task
            await sleep(self._clock, PROBE_AGAIN_S)
        self._unclaim()  # Another may find one sooner.
        return None

    async def _acquire(self, wanted: int) -> Permit:
        now_s, known = self._clock.monotonic(), self.known
        # Also when it was opened again meanwhile: each take would be broken off at once.
        known.closed.clear()
        known.opened.clear()
        if not self.provider.client_rate and known.free and now_s - self._looked_s < LOOK_S:
            return Permit(wanted)
        self._looked_s = now_s
        granted, wait_ms = await known.ask(wanted)
        if known.unreadable:
            await known.mend()
            granted, wait_ms = await known.ask(wanted)
        if known.record.rate is not None and granted < wanted:
            self._counts.untold.short = True
        if known.record.hold is None:
            return Permit(granted, wait_ms / 1000)
        if throttle.claimable(known.record, known.clock_ms) and await known.claim(self._claim):
            return Permit(1, probe=True)
        held = known.record.hold
        until_ms = max(held.until_ms, held.claim_ms if held.claim else 0) if held is not None else 0
        return Permit(0, max(0, until_ms - known.clock_ms) / 1000)

    def _claim(self, record: ClientRecord, clock_ms: int) -> bool:
        return throttle.claim(record, self._shared.node, clock_ms, self._lease_ms)

    def _unclaim(self) -> None:
        self._counts.untold.unclaim = True
        self._tell_in(0)

    # --- after a request

    def release(self, ended: Ended) -> Verdict:
        """
        Count an answer and publish it when other nodes need it.

        Returns its verdict, with the scope ``ours`` if no provider at all can be reached.
        """
        account, verdict, now_s = ended.account, ended.verdict, self._clock.monotonic()
        # Else not before all nodes may know of it: others would meet the same.
        if verdict.pair is not None:
            self.answered(account)
        self._shared.refreshes[self.provider.name, verdict.outcome] += 1
        calm = self._noted is None and not self.breaker.troubled and not self._probing
        # As most answers are, for a part of the time.
        if verdict.pair is not None and ended.witness and calm and self.known.free:
            self.breaker.answered(now_s)
            self.concurrency.ended(well=True, now=now_s)
            self._counts.count_well(now_s)
            if self._news or self._tell_at_s == NEVER_S:
                self._tell_in(self._left_s(TELL_APART_S if self._news else TELL_S, now_s))
            return verdict
        kind = ended.kind
        known_well = bool(self.known.record.well_ms) or verdict.pair is not None
        self.breaker.ended(account, verdict, kind, now_s, known_well=known_well)
        ill = kind in ("silent", "limited") or (kind in ("erring", "client") and ended.witness)
        self.concurrency.ended(well=not ill, now=now_s)
        self._counts.count(ended, kind, now_s)
        if account in self._probing:
            self._probing.discard(account)
            self._counts.untold.probe = throttle.shows_well(self.known.record, kind)
        self._news = self._news or self._is_news(ended, kind)
        apart_s = TELL_APART_S if self._news else TELL_S if self.known.free else TELL_RATED_S
        self._tell_in(self._left_s(apart_s, now_s))
        ours = kind == "silent" and verdict.scope == "provider" and self._shared.unreachable(now_s)
        return replace(verdict, scope="ours") if ours else verdict

    @property
    def _noted(self) -> Silence | None:
        """Return what the shared record says of this node's trouble."""
        return self.known.record.silences.get(self._shared.node)

    @property
    def _trouble_due(self) -> bool:
        return self.breaker.due(self._noted, self.known.clock_ms)

    async def settled(self) -> None:
        """
        Report news at once that should hold other nodes' requests back, or lets them begin.

        The caller's reply waits for it. Never raises.
        """
        counts, known = self._counts, self.known
        if counts.odd and (
            counts.untold.probe is not None
            or throttle.suspected(known.record, counts.recent, known.clock_ms)
        ):
            await self.tell()

    def block(self, fault: str) -> None:
        """
        Note that this node asks the provider nothing, for its journal cannot be written.

        ``fault``: why; empty: it asks.
        """
        if not fault and not self.breaker.blocked:
            return
        brief = f"the journal of {self._shared.node} is not writable: {fault}" if fault else ""
        self.breaker.block(brief, self._clock.monotonic())
        if self._trouble_due and (self._telling is None or self._telling.done()):
            self._tell_in(0)

    def answered(self, account: str) -> None:
        """
        Note that an answer has come, or that none will come: another request may begin meanwhile.
        """
        self.unanswered.discard(account)
        self.freed.set()

    def assess(self, verdict: Verdict) -> Assessment:
        """
        Return what is known of the client's other accounts when one of its refreshes has failed.
        """
        known = self.known
        return judgement.assess(
            known.record,
            kind_of(verdict),
            self._counts.recent,
            known.clock_ms,
            known.lag_ms,
            silent=verdict.scope == "ours" or self.breaker.streak >= SILENT_STREAK,
        )

    async def weigh(self) -> None:
        """Read the client's record anew before an account is given up. Never raises."""
        await self.tell()
        try:
            await self.known.look()
        except errors.Error as error:
            log.debug("%s: what others know of it was not asked: %s", self.provider.name, error)

    async def close(self) -> None:
        """Tell the counts, and end the background jobs. Never raises."""
        for task in (self._sleeping, self._telling):
            if task is not None:
                task.cancel()
        await self.tell()
        await self.known.close()

    # --- telling the other nodes

    def _is_news(self, ended: Ended, kind: Kind) -> bool:
        """Return whether other nodes should soon hear of the answer just counted."""
        record = self.known.record
        if self._counts.untold.probe is not None or self._trouble_due or kind == "limited":
            return True
        if kind == "ok":
            troubled = record.quarantine is not None or record.hold is not None
            return ended.refused_before or troubled
        again = ended.witness or ended.refused_before
        return kind in ("erring", "client", "refused") and again

    def _left_s(self, apart_s: float, now_s: float) -> float:
        """Return the seconds until so long has passed since something was told."""
        return max(0.0, apart_s - (now_s - self._told_s))

    def _tell_in(self, delay_s: float) -> None:
        at_s = self._clock.monotonic() + delay_s
        if at_s >= self._tell_at_s:
            return
        self._tell_at_s = at_s
        if self._sleeping is not None:
            self._sleeping.cancel()
        self._sleeping = asyncio.create_task(
            self._tell_at(at_s), name=f"telling of {self.provider.name}"
        )

    async def _tell_at(self, at_s: float) -> None:
        await sleep(self._clock, max(0.0, at_s - self._clock.monotonic()))
        # Whoever wants it told sooner cancels the sleep, not what is told.
        self._tell_at_s, sleeping, self._sleeping = NEVER_S, self._sleeping, None
        if self._telling is not None and not self._telling.done():
            return
        self._telling = sleeping
        await self.tell()
        # It came meanwhile.
        if self._news or (self._counts.untold.unclaim and self._tell_at_s == NEVER_S):
            self._tell_in(TELL_APART_S)
        elif not self._counts.empty:
            self._tell_in(TELL_S)

    async def tell(self) -> None:
        """
        Tell the other nodes the counts. Never raises.

        Counts that cannot be told now come with the next.
        """
        now_s, known = self._clock.monotonic(), self.known
        if self._counts.empty and not self._trouble_due and not known.record.recovering:
            return
        self._told_s, self._news = now_s, False
        told = self._counts.take(self._shared.node, now_s, max(1, self._shared.nodes()))
        try:
            if not known.clock_ms:
                await known.ask()
            self.breaker.report(told, self._noted, now_s, known.clock_ms)
            await self.change(lambda record, clock_ms: judgement.fold(record, told, clock_ms))
        except errors.Error as error:
            log.debug("%s: what it answered was not told: %s", self.provider.name, error)
            self._counts.put_back(told)
            self._tell_in(TELL_S)
