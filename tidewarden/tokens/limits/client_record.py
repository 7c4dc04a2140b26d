"""
Keeps the record of one client that all nodes share, changes it, and acts on changes.

It is one record in the store, read and written whole, by compare-and-swap; the client's token
bucket lies beside it, see ``tokens/lua/client.lua``. The node that changes it pauses or resumes the
client's queue, has failing accounts tried anew, and says so in its log.

Times are milliseconds of the leases' clock unless a name says unix. Fields are only ever appended,
so that nodes of two versions read each other's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from tidewarden import errors
from tidewarden.clock import sleep
from tidewarden.config.error_classes import Kind
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.provider import advice

from .answer_counts import Bucket, Silence
from .node_limits import NodeLimits

log = logging.getLogger("tidewarden.tokens")

PAUSE_AGAIN_S = 5.0  # After the store refused a pause, or its end.
# A pause outlives the next probe: should all who know of it die, work goes on.
PAUSE_SLACK_MS = 60_000
SWAPS_MAX, CROWDED, SPREAD_S = 20, 8, 0.05
SAMPLE_LOOK_S = 1.0  # How often it is looked whether one of the quarantined is to be asked.
SAMPLE_MS, SAMPLE_WELL_MS = 10_000, 2_000
"""
Milliseconds between two accounts of a quarantine's sample, and once one of them is well again.
"""
SAMPLE_APART_MS = 60_000
"""Milliseconds between two requests for one account of a small sample."""
SAMPLE_PART = 360
"""The pause of a sample is this part of the quarantine's age: ten seconds in its first hour."""
ROUSE_SPREAD_MS = 10_000
ROUSE_CLAIM_MS = 60_000


class ClientEvent(NamedTuple):
    """Holds an event of the provider: ``data`` as ``tokens/events/outbox.py`` reads it."""

    kind: str
    data: str = ""


class Hold(msgspec.Struct, array_like=True):
    """Says that all of a client's requests wait but one that probes at a time."""

    kind: str = "erring"
    """Why all requests wait: ``client`` or ``erring``."""
    since_ms: int = 0
    until_ms: int = 0
    """Nothing is sent before this time; from then on one request probes."""
    probes: int = 0
    """The number of probes that failed."""
    claim: str = ""
    """The node that probes; empty: nobody does."""
    claim_ms: int = 0
    """When the claim ends: if its node dies, another node probes from then on."""
    outcome: str = ""
    brief: str = ""
    """The answer that most got, status and code alone."""
    failed: int = 0
    """Witnesses that were answered so when it began …"""
    asked: int = 0
    """… of so many."""

    @property
    def said(self) -> str:
        """Describe the answers: class, status and code, and how many accounts met with them."""
        share = f"({self.failed} of {self.asked} accounts that were well)"
        return f"{self.outcome} {self.brief} {share}".strip()


class Quarantine(msgspec.Struct, array_like=True):
    """Says that no account is given up: accounts that were well fail by more than a few."""

    since_ms: int = 0
    refused: int = 0
    """
    Accounts that were refused since the quarantine began, and in the time whose share began it.
    """
    refused_share: float = 0.0
    """The share of refusals that began the quarantine."""
    usual_share: float = 0.0
    outcome: str = ""
    brief: str = ""
    by_operator: bool = False
    accepted: float = 0.0
    """Of the sample: accounts that had failed and were well when asked again …"""
    sampled: float = 0.0
    """… of so many, of late: of more than five, their part of five."""
    kind: str = "refused"
    """
    How its accounts fail: ``refused``, ``erring``, or ``unproven``: refused, and none of the
    client's accounts was ever refreshed well here.
    """
    ending_ms: int = 0
    """
    Since when some accounts that had failed are well again; 0: none. It ends when no more follow.
    """
    sample_ms: int = 0
    """When the next account of the sample is asked."""
    recovered: int = 0
    """Accounts that had failed and are well again, of all since the quarantine began."""

    def sample_pause_ms(self, clock_ms: int) -> int:
        """Return the milliseconds between two accounts of the sample, as things are now."""
        return max(
            SAMPLE_WELL_MS if self.accepted else SAMPLE_MS,
            (clock_ms - self.since_ms) // SAMPLE_PART,
            SAMPLE_APART_MS // max(1, self.refused),
        )


class Rate(msgspec.Struct, array_like=True):
    """Holds the requests a second that a provider seems to bear, and where it grows to next."""

    per_second: float = 0.0
    peak: float = 0.0
    """The goodput when the rate last proved too much."""
    shrunk_ms: int = 0
    meter_ms: int = 0
    """Since when the next two fields are counted."""
    answered: int = 0
    limited: int = 0
    since_shrunk: int = 0
    """Answers since the rate shrank last."""
    short_ms: int = 0
    """
    When the rate last granted fewer requests than were asked for: while it does, it is not
    forgotten.
    """
    doubled_ms: int = 0
    """
    When the rate was last doubled, or a 429 came, if almost nothing was answered well when it
    shrank; 0: it grows by time.
    """


class ClientRecord(msgspec.Struct, array_like=True):
    """Holds what all nodes know of one client at one provider."""

    buckets: list[Bucket] = msgspec.field(default_factory=list)
    well_ms: int = 0
    """When an account was refreshed well last."""
    hold: Hold | None = None
    opened_ms: int = 0
    """When the last hold ended: answers from before it say nothing of now."""
    incident_ms: int = 0
    """
    Since when ``provider.breaker_open`` stands without a ``provider.breaker_closed``; 0: it does
    not.
    """
    rest_ms: int = 0
    """
    Nothing is sent before this time, because every answer named a time to wait; then all go on.
    """
    rest_brief: str = ""
    rate: Rate | None = None
    quarantine: Quarantine | None = None
    usual_well: float = 0.0
    """Good answers of the last days, old ones counting less and less …"""
    usual_refused: float = 0.0
    """… and refusals among witnesses."""
    usual_ms: int = 0
    released_ms: int = 0
    """When an operator ended a quarantine, until refusals are as usual again; 0: nobody did."""
    rouse_ms: int = 0
    """Since when all failing accounts are to be tried anew; 0: they are not, or have been."""
    rouse_claim_ms: int = 0
    """Until when a node has claimed to do so."""
    roused_ms: int = 0
    """When the failing accounts were last tried anew."""
    in_a_row: dict[str, int] = msgspec.field(default_factory=dict)
    """Witnesses that failed since an account was refreshed well, or refused, by kind …"""
    row_ms: int = 0
    """… and when the first of them did."""
    silences: dict[str, Silence] = msgspec.field(default_factory=dict)
    """The nodes' troubles, by node."""
    rests: int = 0
    """How many times in a row all requests rested and were told to wait again afterwards."""
    unproven: int = 0
    """Accounts that were refused while none was ever refreshed well here."""

    @property
    def recovering(self) -> bool:
        """
        Return whether an incident was reported and no hold is left.

        The incident is over when that lasts a while.
        """
        return bool(self.incident_ms) and self.hold is None

    def sample_due(self, clock_ms: int) -> bool:
        """Return whether it is time to try another account of the quarantine."""
        found = self.quarantine
        return found is not None and not found.ending_ms and clock_ms >= found.sample_ms

    def claim_sample(self, clock_ms: int) -> bool:
        """Claim the next try of an account of the quarantine, if it is time."""
        found = self.quarantine
        if found is None or not self.sample_due(clock_ms):
            return False
        found.sample_ms = clock_ms + found.sample_pause_ms(clock_ms)
        return True

    def claim_rouse(self, clock_ms: int) -> bool:
        """Claim to have all failing accounts tried anew, if that is due and no node does so."""
        if not self.rouse_ms or self.rouse_claim_ms > clock_ms:
            return False
        self.rouse_claim_ms = clock_ms + ROUSE_CLAIM_MS
        return True

    def pack(self) -> bytes:
        """Return the stored form."""
        return msgspec.msgpack.encode(self)


Change = Callable[[ClientRecord, int], list[ClientEvent]]
"""Changes a record at a time of the leases' clock; returns the events to tell."""


def parse_record(raw: bytes) -> ClientRecord:
    """
    Parse the stored form of a record.

    An unreadable record counts as none: evidence comes anew with each answer.
    """
    return _read(raw) or ClientRecord()


def _read(raw: bytes) -> ClientRecord | None:
    """Parse a record; None: it cannot be read."""
    if not raw:
        return ClientRecord()
    try:
        return msgspec.msgpack.decode(raw, type=ClientRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def read_client(
    queue: str, accounts: AccountStore, *, copied: bool = False
) -> tuple[ClientRecord, int, int]:
    """
    Read a client's record as it is now; ``copied``: as a copy has it, by a script that only reads.

    Returns it with the leases' clock, and how far unix time is ahead of that. Raises what the store
    raises.
    """
    if copied:
        found = await accounts.figures(queue)
        return parse_record(found.client), found.clock_ms, found.lag_ms
    reply = await accounts.script("tokens.client", queue, 0, ("ask", 0, 0, 0))
    _, _, _, clock_ms, lag_ms, raw = reply
    return parse_record(bytes(raw or b"")), clock_ms, lag_ms


class SharedRecord:
    """
    Shares one client's record. ``record`` is what was last heard of it.

    Every method but ``close`` raises what the store raises.
    """

    def __init__(self, provider: Provider, queue: str, shared: NodeLimits) -> None:
        self._provider = provider
        self.queue = queue
        self._shared = shared
        self._clock = shared.clock
        self.record = ClientRecord()
        self.closed = asyncio.Event()
        """
        Set when all requests are held back, so that a take waits in vain, until this node asks
        again.
        """
        self.opened = asyncio.Event()
        """Set when nothing holds all requests back any more, until this node asks again."""
        self.unreadable = False
        """
        The record in the store cannot be read; until it is written anew its former holds stand, and
        no node would end them.
        """
        self.lag_ms = 0
        """How far the store's unix time is ahead of the leases' clock."""
        self._version = 0
        self._clock_ms = 0
        self._clock_at_s = 0.0
        self._paused_ms = 0
        self._changing = asyncio.Lock()
        self._jobs: dict[str, asyncio.Task[None]] = {}

    @property
    def free(self) -> bool:
        """Return whether no hold, rate or pause applies to the client."""
        return not self._held and self.record.rate is None

    @property
    def clock_ms(self) -> int:
        """Return the leases' clock, as far as this node knows it; 0 before the store was asked."""
        if not self._clock_ms:
            return 0
        return self._clock_ms + int((self._clock.monotonic() - self._clock_at_s) * 1000)

    async def ask(self, wanted: int = 0) -> tuple[int, int]:
        """
        Ask the client's rate for requests, and bring the record up to date.

        Returns: how many requests are granted, and milliseconds until more may be.
        """
        return await self._run("ask", wanted, _thousandths(self._provider.client_rate))

    async def give_back(self, requests: int) -> None:
        """Give requests back that were granted and not sent."""
        if requests and (self._provider.client_rate or self.record.rate is not None):
            await self._run("back", requests, _thousandths(self._provider.client_rate))

    async def look(self) -> None:
        """Bring the record up to date, once a report of this node that is under way has ended."""
        async with self._changing:
            await self.ask()

    async def change(self, change: Change) -> None:
        """Read, change, compare and swap, until no other node has changed it in between."""
        async with self._changing:
            for swap in range(SWAPS_MAX):
                if swap >= CROWDED:  # Many tell at once: apart they all get through.
                    await sleep(self._clock, self._shared.dice.random() * SPREAD_S * swap)
                if not self._clock_ms:
                    await self.ask()
                before, record = self.record, parse_record(self.record.pack())
                events = change(record, self.clock_ms)
                if await self._write(record, events):
                    self.unreadable = False
                    self._know(record)
                    self._follow(before, events)
                    return
        raise errors.Timeout(
            f"what is known of {self._provider.name} changed {SWAPS_MAX} times while it was told"
        )

    async def claim(self, claim: Callable[[ClientRecord, int], bool]) -> bool:
        """Change the record by ``claim``, and return what the last call of it returned."""
        claimed: list[bool] = []

        def change(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
            claimed.append(claim(record, clock_ms))
            return []

        await self.change(change)
        return claimed[-1]

    async def mend(self) -> None:
        """Write the record anew if it cannot be read."""
        await self.change(lambda _record, _clock_ms: [])
        self._start("pause", self._keep_paused())

    async def close(self) -> None:
        """End the background jobs."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    async def _write(self, record: ClientRecord, events: Sequence[ClientEvent]) -> bool:
        """Replace the version of the record that was read; False: it was another by now."""
        hold, rate = record.hold, record.rate
        until_ms = max(record.rest_ms, hold.until_ms if hold is not None else 0)
        per_second = _thousandths(rate.per_second) if rate is not None else 0
        told = [part for event in events for part in event]
        state = (record.pack(), per_second, until_ms, int(hold is not None))
        granted, _ = await self._run("write", *state, *told)
        return bool(granted)

    async def _run(self, verb: str, *args: str | bytes | int) -> tuple[int, int]:
        """Run the client's script, and take over what the store knows better."""
        known = (verb, self._version, *args)
        reply = await self._shared.accounts.script("tokens.client", self.queue, 0, known)
        granted, wait_ms, self._version, self._clock_ms, self.lag_ms, raw = reply
        self._clock_at_s = self._clock.monotonic()
        if raw:  # It is of another version than was known.
            found = _read(bytes(raw))
            self.unreadable = found is None
            self._know(found or ClientRecord())
        return granted, wait_ms

    def _know(self, record: ClientRecord) -> None:
        was_held, self.record = self._held, record
        if self._held:
            self.closed.set()
        elif was_held:
            self.opened.set()
        if record.quarantine is not None:
            self._start("sample", self._sample())

    @property
    def _held(self) -> bool:
        """Return whether all requests are held back."""
        return self.record.hold is not None or self.record.rest_ms > self.clock_ms

    # --- what follows from a change

    def _follow(self, before: ClientRecord, events: Sequence[ClientEvent]) -> None:
        record = self.record
        was, held = (before.hold is None, before.rest_ms), (record.hold is None, record.rest_ms)
        # Another node paused it, perhaps.
        if self._pause_until() != self._paused_ms or was != held:
            self._start("pause", self._keep_paused())
        if record.rouse_ms:
            self._start("new tries", self._rouse())
        if events:
            self._shared.on_event(self._provider.name)
        for event in events:
            self._say(event)

    def _start(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        """Start a background job, unless one of that name is running."""
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
        """Return until when the client's queue is to be paused; 0: it is not."""
        record = self.record
        if record.hold is not None:
            return record.hold.until_ms + PAUSE_SLACK_MS
        return record.rest_ms if record.rest_ms > self.clock_ms else 0

    async def _keep_paused(self) -> None:
        """
        Pause or resume the queue as the record says, also if the record changes meanwhile.

        No late resume undoes another node's pause.
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

    async def _rouse(self) -> None:
        """Have all failing accounts tried anew, unless another node is at it."""

        def done(record: ClientRecord, clock_ms: int) -> list[ClientEvent]:
            record.rouse_ms, record.rouse_claim_ms, record.roused_ms = 0, 0, clock_ms
            return []

        try:
            if not await self.claim(ClientRecord.claim_rouse):
                return
            for shard in await self._shared.shards_of(self.queue):
                await self._shared.accounts.rouse(self.queue, shard, ROUSE_SPREAD_MS)
            await self.change(done)
        except errors.Error as error:
            log.warning(
                "%s: not all failing accounts are tried anew yet: %s", self._provider.name, error
            )

    async def _sample(self) -> None:
        """Have a quarantine's accounts asked, one at a time, by whichever node claims it."""
        while self.record.quarantine is not None:
            try:
                if self.record.sample_due(self.clock_ms):
                    await self.ask()  # Another node claimed it a moment ago, perhaps.
                    due = self.record.sample_due(self.clock_ms)
                    if due and await self.claim(ClientRecord.claim_sample):
                        await self._rouse_one()
            except errors.Error as error:
                log.debug("%s: none of its accounts was sampled: %s", self._provider.name, error)
            await sleep(self._clock, SAMPLE_LOOK_S * (0.5 + self._shared.dice.random()))

    async def _rouse_one(self) -> None:
        """
        Have a quarantined account tried now: in its shard, the one whose wait would end first.
        """
        found = self.record.quarantine
        erring = found is not None and found.kind == "erring"
        kinds: Sequence[Kind] = ("erring",) if erring else ("refused", "client")
        for shard in await self._shared.shards_of(self.queue):
            if await self._shared.accounts.rouse(self.queue, shard, 1, 1, kinds):
                return

    def _say(self, event: ClientEvent) -> None:
        """Log an event."""
        name, record = self._provider.name, self.record
        if event.kind == "provider.breaker_open" and record.hold is not None:
            held, how, what = record.hold, "fails each request", ""
            if held.kind == "client":
                how = "refuses our client"
                what = f". {advice.of_provider(self._provider, held.outcome)}"
            log.error("%s %s (%s): its accounts wait%s", name, how, held.said, what)
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


def _thousandths(per_second: float) -> int:
    return max(1, round(per_second * 1000)) if per_second else 0
