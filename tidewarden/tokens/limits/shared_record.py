"""
Keeps this node's copy of a client's record, changes it by compare-and-swap, and acts on changes.

Whoever changes it pauses or resumes the client's queue, has failing accounts tried anew, and says
so in its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tidewarden import errors
from tidewarden.clock import sleep
from tidewarden.config.error_classes import Kind
from tidewarden.config.load import Provider
from tidewarden.tokens.provider import advice

from . import hold, judgement, quarantine
from .client_record import ClientRecord, parse_record, read_record
from .client_store import ClientStore, Reply
from .judgement import ClientEvent
from .node_limits import NodeLimits

log = logging.getLogger("tidewarden.tokens")

Change = Callable[[ClientRecord, int], list[ClientEvent]]
"""Changes a record, at that time of the leases' clock; what of it is to be told."""

PAUSE_AGAIN_S = 5.0  # After the store refused a pause, or its end.
# A pause outlives the next probe: should all who know of it die, work goes on.
PAUSE_SLACK_MS = 60_000
SWAPS_MAX, CROWDED, SPREAD_S = 20, 8, 0.05
SAMPLE_LOOK_S = 1.0  # How often it is looked whether one of the quarantined is to be asked.
ROUSE_SPREAD_MS = 10_000
ROUSE_CLAIM_MS = 60_000


class SharedRecord:
    """Shares one client's record. ``record`` is what was last heard of it."""

    def __init__(self, provider: Provider, queue: str, shared: NodeLimits) -> None:
        self._provider = provider
        self.queue = queue
        self._shared = shared
        self._clock = shared.clock
        self.store = ClientStore(queue, shared.script)
        self.record = ClientRecord()
        self.closed = asyncio.Event()
        """
        Set when all are held back, until this node asks again: a take that waits is in vain then.
        """
        self.unreadable = False
        """
        The record in the store cannot be read: until it is written anew, its former holds stand,
        which nobody would end.
        """
        self.lag_ms = 0
        """How far the store's unix time is ahead of the leases' clock."""
        self._raw = b""
        self._version = 0
        self._clock_ms = 0
        self._clock_at_s = 0.0
        self._paused_ms = 0
        self._changing = asyncio.Lock()
        self._jobs: dict[str, asyncio.Task[None]] = {}

    @property
    def free(self) -> bool:
        """Whether nothing holds anybody back."""
        record = self.record
        return (
            record.hold is None
            and record.rate is None
            and not (record.rest_ms and record.rest_ms > self.clock_ms)
        )

    @property
    def clock_ms(self) -> int:
        """The leases' clock, as far as this node knows it; 0 before the store was asked."""
        if not self._clock_ms:
            return 0
        return self._clock_ms + int((self._clock.monotonic() - self._clock_at_s) * 1000)

    async def ask(self, wanted: int = 0) -> Reply:
        """
        Ask for leave of the client's rate; the record is as of now then.

        Raises what the store raises.
        """
        reply = await self.store.ask(self._version, wanted, self._provider.client_rate)
        self._took(reply)
        return reply

    async def give_back(self, requests: int) -> None:
        """So many that were granted are not sent. Raises what the store raises."""
        if requests and (self._provider.client_rate or self.record.rate is not None):
            await self.store.give_back(self._version, requests, self._provider.client_rate)

    async def look(self) -> None:
        """
        Bring the record up to date, after whatever this node is telling just now.

        Raises what the store raises.
        """
        async with self._changing:
            await self.ask()

    async def change(self, change: Change) -> None:
        """
        Read, change, compare and swap, until nobody was between. Raises what the store raises.
        """
        async with self._changing:
            for swap in range(SWAPS_MAX):
                if swap >= CROWDED:  # Many tell at once: apart they all get through.
                    await sleep(self._clock, self._shared.dice.random() * SPREAD_S * swap)
                if not self._clock_ms:
                    await self.ask()
                before, record = self.record, parse_record(self._raw)
                events = change(record, self.clock_ms)
                reply = await self.store.write(self._version, record, events)
                self._took(reply)
                if reply.granted:
                    self._raw, self.unreadable = record.pack(), False
                    self._know(record)
                    self._follow(before, events)
                    return
        raise errors.Timeout(
            f"what is known of {self._provider.name} changed {SWAPS_MAX} times while it was told"
        )

    async def mend(self) -> None:
        """Write a record anew that cannot be read. Raises what the store raises."""
        await self.change(lambda _record, _clock_ms: [])
        self._start("pause", self._keep_paused())

    async def close(self) -> None:
        """End what goes on beside. Never raises."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    def _took(self, reply: Reply) -> None:
        self._clock_ms, self.lag_ms = reply.clock_ms, reply.lag_ms
        self._clock_at_s = self._clock.monotonic()
        self._version = reply.version
        if reply.raw is not None:
            self._raw = reply.raw
            found = read_record(reply.raw)
            self.unreadable = found is None
            self._know(found or ClientRecord())

    def _know(self, record: ClientRecord) -> None:
        self.record = record
        if record.hold is not None or record.rest_ms > self.clock_ms:
            self.closed.set()
        if record.quarantine is not None:
            self._start("sample", self._sample())

    # --- what follows from a change

    def _follow(self, before: ClientRecord, events: Sequence[ClientEvent]) -> None:
        record = self.record
        was, held = (before.hold is None, before.rest_ms), (record.hold is None, record.rest_ms)
        # Another node paused it, perhaps.
        if self._pause_until() != self._paused_ms or was != held:
            self._start("pause", self._keep_paused())
        if record.hold is None and record.incident_ms:
            self._start("end of an incident", self._tell_calm())
        if record.rouse_ms:
            self._start("new tries", self._rouse())
        if events:
            self._shared.on_event(self._provider.name)
        for event in events:
            self._say(event)

    def _start(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        """Do something beside; what goes by that name already goes on alone."""
        if name in self._jobs:
            job.close()
            return
        task = self._jobs[name] = asyncio.create_task(job, name=f"{name} of {self._provider.name}")
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._jobs[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "%s of %s failed for a reason of ours", name, self._provider.name, exc_info=error
            )

    def _pause_until(self) -> int:
        """Until when the client's queue is to be paused; 0: not."""
        record = self.record
        if record.hold is not None:
            return record.hold.until_ms + PAUSE_SLACK_MS
        return record.rest_ms if record.rest_ms > self.clock_ms else 0

    async def _keep_paused(self) -> None:
        """
        Pause or resume the queue as the record says, and as it says then.

        No late resume stands against another's pause.
        """
        while True:
            try:
                until_ms = self._pause_until()
                if until_ms:
                    left_ms = until_ms - self.clock_ms + self._shared.dice.randrange(1000)
                    await self._shared.admin.pause(self.queue, max(1, left_ms))
                else:
                    await self._shared.admin.resume(self.queue)
                self._paused_ms = until_ms
                await self.ask()
                if self._pause_until() == until_ms:
                    return
            except errors.Error as error:
                log.warning(
                    "%s: its queue is not paused or resumed yet: %s", self._provider.name, error
                )
                await sleep(self._clock, PAUSE_AGAIN_S)

    async def _tell_calm(self) -> None:
        """Tell that an incident is over when it is."""
        while self.record.incident_ms and self.record.hold is None:
            await sleep(self._clock, hold.CALM_MS / 1000 + 1)
            try:
                await self.change(self._nothing_new)
            except errors.Error as error:
                log.debug("%s: that it is well again was not told: %s", self._provider.name, error)

    def _nothing_new(self, record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
        return judgement.fold(record, judgement.Told(self._shared.node), clock_ms)

    async def _rouse(self) -> None:
        """Have all failing accounts tried anew, unless another node is at it."""
        claimed = False

        def claim(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
            nonlocal claimed
            claimed = bool(record.rouse_ms) and record.rouse_claim_ms <= clock_ms
            if claimed:
                record.rouse_claim_ms = clock_ms + ROUSE_CLAIM_MS
            return []

        def done(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
            record.rouse_ms, record.rouse_claim_ms, record.roused_ms = 0, 0, clock_ms
            return []

        try:
            await self.change(claim)
            if not claimed:
                return
            for shard in await self._shared.shards_of(self.queue):
                await self.store.rouse(shard, ROUSE_SPREAD_MS)
            await self.change(done)
        except errors.Error as error:
            log.warning(
                "%s: not all failing accounts are tried anew yet: %s", self._provider.name, error
            )

    async def _sample(self) -> None:
        """Have those that a quarantine is for asked, one at a time, by whichever node claims it."""
        claimed = False

        def claim(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
            nonlocal claimed
            claimed = quarantine.claim_sample(record, clock_ms)
            return []

        while self.record.quarantine is not None:
            try:
                if quarantine.sample_due(self.record, self.clock_ms):
                    await self.ask()  # Another node claimed it a moment ago, perhaps.
                    claimed = False
                    if quarantine.sample_due(self.record, self.clock_ms):
                        await self.change(claim)
                    if claimed:
                        await self._rouse_one()
            except errors.Error as error:
                log.debug("%s: none of its accounts was sampled: %s", self._provider.name, error)
            await sleep(self._clock, SAMPLE_LOOK_S * (0.5 + self._shared.dice.random()))

    async def _rouse_one(self) -> None:
        """Have one of the quarantined tried now: whose wait would end first in its shard."""
        found = self.record.quarantine
        kinds: Sequence[Kind] = ("refused", "client")
        if found is not None and found.kind == "erring":
            kinds = ("erring",)
        for shard in await self._shared.shards_of(self.queue):
            if await self.store.rouse(shard, 1, 1, kinds):
                return

    def _say(self, event: ClientEvent) -> None:
        """An event, in this node's log."""
        name, record = self._provider.name, self.record
        if event.kind == "provider.breaker_open" and record.hold is not None:
            held, what = record.hold, ""
            how = "fails each request"
            if held.kind == "client":
                how, what = (
                    "refuses our client",
                    f". {advice.of_provider(self._provider, held.outcome)}",
                )
            log.error("%s %s (%s): its accounts wait%s", name, how, judgement.said(record), what)
        elif event.kind == "provider.breaker_closed":
            log.warning("%s answers again: its accounts go on", name)
        elif event.kind == "provider.quarantine_begun" and record.quarantine is not None:
            self._shared.quarantines[name] += 1
            log.error(
                "%s %s %.0f %% of the accounts that were well, far more than usual: nobody is given"
                " up for it",
                name,
                "fails" if record.quarantine.kind == "erring" else "refuses",
                record.quarantine.refused_share * 100,
            )
        elif event.kind == "provider.quarantine_over":
            log.warning("%s: its quarantine is over", name)
