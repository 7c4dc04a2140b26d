"""
A fleet of accounts in one shard, refreshed in compressed time.

It uses the product's own scripts, policy and leveller.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.desk import Desk
from tests.support.manual_clock import ManualClock
from tidewarden.config.load import Provider
from tidewarden.queue import TaskSpec
from tidewarden.queue.settings import QueueSettings
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.policy.due_times import due_after, due_before
from tidewarden.tokens.refresh.load_leveller import PERIOD_S, Leveller

LIFE_S, MARGIN_S = 3600, 300
CYCLE_MS = (LIFE_S - MARGIN_S) * 1000
PROVIDER = Provider(name="bench", margin_s=MARGIN_S, default_life_s=LIFE_S)
BEGIN_MS = 2_000_000_000_000
STEP_MS = 1000
CROWDS = (0.15, 0.5, 0.8)
CROWD_MS = 240_000


@dataclasses.dataclass
class Fleet:
    """Accounts and when their tokens expire (ms); what became of them since the outage."""

    expires_ms: list[int]
    dice: random.Random
    ever: set[int] = dataclasses.field(default_factory=set)
    minutes: float = 0.0

    def task(self, number: int, due_ms: int) -> TaskSpec:
        """An account's task."""
        return TaskSpec(id=f"u{number}", at_ms=due_ms, deadline_ms=self.expires_ms[number])

    def refreshed(self, number: int, now_ms: int) -> TaskSpec:
        """Its token was refreshed; the next one."""
        late_ms = now_ms - self.expires_ms[number]
        if late_ms > 0:
            self.ever.add(number)
            self.minutes += late_ms / 60_000
        self.expires_ms[number], due_ms = due_after(now_ms, LIFE_S, PROVIDER, self.dice.random())
        return self.task(number, due_ms)

    def tasks(self) -> list[TaskSpec]:
        """Every account's, as they are imported."""
        return [
            self.task(number, due_before(expires_ms, LIFE_S, PROVIDER, self.dice.random()))
            for number, expires_ms in enumerate(self.expires_ms)
        ]

    def forget(self) -> None:
        """What became of them until now does not count."""
        self.ever, self.minutes = set(), 0.0


def fleet_of(accounts: int, clustered: bool) -> Fleet:
    """
    Make accounts none of which is overdue.

    Expiries are evenly spread, or seven in ten in three crowds of four minutes.
    """
    dice = random.Random(7)
    first_ms = BEGIN_MS + MARGIN_S * 1000
    crowds = [first_ms + int(share * CYCLE_MS) for share in CROWDS]
    expires = []
    for number in range(accounts):
        if clustered and number % 10 < 7:
            expires.append(crowds[number % 3] + dice.randrange(-CROWD_MS // 2, CROWD_MS // 2))
        else:
            expires.append(first_ms + dice.randrange(CYCLE_MS))
    return Fleet(expires, dice)


class OneShard:
    """What the benchmark's queue is cut into."""

    def shard_of(self, _queue: str, _account: str) -> int:
        return 0

    async def shard_count(self, _queue: str) -> int:
        return 1


class Levelling:
    """The product's leveller on the one shard that there is, by the benchmark's clock."""

    def __init__(self, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self._desk = desk
        self._loop = loop
        self._now_ms = self._next_ms = 0
        self._period_s = PERIOD_S[1]
        ledger = AccountStore(self._script, OneShard())
        self._leveller = Leveller(
            PROVIDER, "bench", ledger, ManualClock(), lambda: float(LIFE_S), lambda: True
        )

    async def _script(self, name: str, _queue: str, _shard: int, args: Sequence[Any]) -> Any:
        return self._desk.run(name, self._now_ms, *args)

    def turn(self, now_ms: int, room: bool) -> None:
        """What :meth:`Leveller.run` does."""
        if now_ms < self._next_ms:
            return
        self._now_ms = now_ms
        self._period_s = (
            self._loop.run_until_complete(self._leveller.round(self._period_s))
            if room
            else PERIOD_S[1]
        )
        self._next_ms = now_ms + int(self._period_s * 1000)


class Run:
    """
    A fleet under one order. ``capacity``: times the rate at which tokens fall due on the average.
    """

    def __init__(
        self, desk: Desk, fleet: Fleet, settings: QueueSettings, levelling: Levelling | None
    ) -> None:
        self.fleet = fleet
        self._desk = desk
        self._load = len(fleet.expires_ms) / CYCLE_MS * STEP_MS
        self._levelling = levelling
        self._credit = 0.0
        desk.client.delete(*(list(desk.client.scan_iter(f"{desk.keys[0]}*")) or ["-"]))
        desk.run("queue.configure", 0, *settings.shard_fields())
        tasks = fleet.tasks()
        for begin in range(0, len(tasks), 1000):
            desk.put(tasks[begin : begin + 1000], BEGIN_MS)

    def _step(self, now_ms: int, capacity: float) -> None:
        self._credit += capacity * self._load
        wanted = int(self._credit)
        rows = self._desk.take(wanted, now_ms) if wanted else []
        room = len(rows) < wanted
        # an idle refresher saves nothing up
        self._credit = 0.0 if room else self._credit - len(rows)
        if rows:
            self._desk.ack(rows, now_ms)
            self._desk.put([self.fleet.refreshed(int(row[0][1:]), now_ms) for row in rows], now_ms)
        if self._levelling:
            self._levelling.turn(now_ms, room)

    def quiet(self, until_ms: int, capacity: float) -> None:
        """Days as all others, from the import on."""
        for now_ms in range(BEGIN_MS, until_ms, STEP_MS):
            self._step(now_ms, capacity)
        self.fleet.forget()
        self._credit = 0.0

    def recover(self, now_ms: int, capacity: float) -> Fleet:
        """From the end of an outage on, until everybody was refreshed in time for a whole life."""
        while self._desk.run("queue.sweep", now_ms, 1, 1000)[0]:  # the leader has gone on with that
            pass
        calm_since = now_ms
        while now_ms - calm_since < LIFE_S * 1000:
            before = self.fleet.minutes
            self._step(now_ms, capacity)
            if self.fleet.minutes > before:
                calm_since = now_ms
            now_ms += STEP_MS
        return self.fleet
