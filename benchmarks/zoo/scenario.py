"""
What a scenario is: a provider's script, a fleet, a course of events, and what is judged of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cluster import GIVEN_UP, Cluster, cluster_up
from .fast_clock import FastClock, fast_clock
from .provider import WELL, Book, Grant, Reply, serving

LAG_EVERY_S = 0.02
MACHINE_EVERY_S = 0.5
IDLE_LEAST = 0.15
"""Of the machine's processors: with less, nodes wait for each other and for whoever else runs."""
SLOWER, FACTOR_LEAST = 0.7, 4.0
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One figure and its limit."""

    what: str
    found: float
    limit: float
    least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the limit holds."""
        return self.found >= self.limit if self.least else self.found <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.least else "≤"
        return (
            f"{self.what} {self.found:,.4g} (limit {sign} {self.limit:,.4g}:"
            f" {'kept' if self.kept else 'MISSED'})"
        )


@dataclass
class Figures:
    """What is judged of every scenario alike, and its own checks."""

    scenario: str
    tree: str
    seed: int
    factor: float
    fleet: int
    seconds: float = 0.0
    """How long it took by the scenario's clock."""
    asked: int = 0
    wasted: int = 0
    """Requests that brought no new pair."""
    late: int = 0
    """Healthy accounts without a living token, beyond what the provider made inevitable."""
    given_up: int = 0
    """Healthy accounts that were ever given up."""
    recovery_s: float | None = None
    """From the provider's being well again until every healthy account was fresh."""
    live: int = 0
    alive_of: int = 0
    """Live grants at the provider, of those that the script did not end."""
    events: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    lag_s: float = 0.0
    """The longest by which the machine was late for the driver itself, by the scenario's clock."""
    checks: list[Check] = field(default_factory=list)

    @property
    def provider_events(self) -> int:
        """How many events told of a provider."""
        return sum(count for kind, count in self.events.items() if kind.startswith("provider."))

    @property
    def kept(self) -> bool:
        """Whether every limit was."""
        return all(check.kept for check in self.checks)


class Stage:
    """A running cluster, the providers' books, and the time."""

    def __init__(
        self, clock: FastClock, cluster: Cluster, books: dict[str, Book], dice: random.Random
    ) -> None:
        self.clock = clock
        self.cluster = cluster
        self.books = books
        self.dice = dice
        self.began_s = clock.now_s()
        self.recovery_s: float | None = None
        self.marks: dict[str, float] = {}
        """Moments that the judge needs."""
        self.states: dict[str, dict[str, Any]] = {}
        """What T.LIST said of each account in the end."""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.said = ""
        """What an operator's command printed."""

    @property
    def book(self) -> Book:
        """The only provider's, or the first one's."""
        return next(iter(self.books.values()))

    def mark(self, name: str) -> float:
        """Note the moment under that name."""
        self.marks[name] = self.clock.now_s()
        return self.marks[name]

    async def until(self, condition: Any, limit_s: float) -> float:
        """Seconds until that was true, ``limit_s`` when it was not by then."""
        began = self.clock.now_s()
        while not condition() and self.clock.now_s() < began + limit_s:
            await asyncio.sleep(0.02)
        return min(limit_s, self.clock.now_s() - began)

    async def recover(self, limit_s: float) -> None:
        """From here on the provider is well: how long until nobody healthy is without a token."""
        self.mark("well")
        self.recovery_s = await self.until(
            lambda: not any(book.late_now() for book in self.books.values()), limit_s
        )


def given(**values: Any) -> Mapping[str, Any]:
    """Settings, or attributes of a scenario."""
    return values


class Scenario:
    """
    One scripted provider (or more) and what happens. Times are the scenario's own.

    Subclasses: their docstring's first line says what it is; ``play`` is its course, ``reply`` how
    a request is answered (another answer, None for a pair, or the seconds that a pair takes),
    ``judge`` what has to hold beyond the usual.
    """

    factor = 20.0
    fleet = 2000
    life_s = 1200.0
    margin_s = 300.0
    grace_s = 0.0
    providers: tuple[str, ...] = ("shop",)
    settings: Mapping[str, Any] = given()
    """Of the providers' sections, beyond those that every run has."""
    tokens: Mapping[str, Any] = given()
    """Of ``[tokens]``: only what the checkout knows is written."""
    quick: Mapping[str, Any] = given()
    """Attributes of the short form."""
    late_max = 0.0
    """Share of the healthy that may be late."""

    def __init__(self, *, quick: bool = False) -> None:
        for name, value in (self.quick if quick else {}).items():
            setattr(self, name, value)

    @property
    def name(self) -> str:
        """Its module's."""
        return type(self).__module__.rpartition(".")[2]

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | float | None:
        """How a request is answered."""
        raise NotImplementedError

    async def fill(self, stage: Stage) -> None:
        """Import the accounts, before the clock is made fast."""
        for book in stage.books.values():
            await stage.cluster.put(book, book.add(self.fleet // len(stage.books), stage.dice))

    async def play(self, stage: Stage) -> None:
        """The course of events."""
        raise NotImplementedError

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        """The scenario's own limits."""
        raise NotImplementedError

    async def run(self, tree: Path, seed: int, folder: Path) -> Figures:
        """Play it against the checkout at ``tree``, its data in ``folder``; what was found."""
        with fast_clock(folder) as clock:
            books = {
                name: Book(name, clock, self.life_s, self.margin_s, self.grace_s)
                for name in self.providers
            }
            for book in books.values():
                book.script = self.reply
            async with (
                serving(*books.values()),
                cluster_up(tree, folder, clock, self.sections(books, tree)) as cluster,
            ):
                return await _play(self, Stage(clock, cluster, books, random.Random(seed)), seed)

    def late(self, stage: Stage) -> int:
        """
        Count healthy accounts that were late without need.

        By default these are all that nothing of their own held.
        """
        return len(
            {one.grant.name for book in stage.books.values() for one in book.lates if not one.own}
        )

    def sections(self, stage_books: Mapping[str, Book], tree: Path) -> dict[str, dict[str, object]]:
        """Of the configuration."""
        found: dict[str, dict[str, object]] = {}
        for name, book in stage_books.items():
            found[f"providers.{name}"] = {
                "token_url": book.url,
                "client_id": "c0",
                "client_secret": "not a secret",
                "margin_s": self.margin_s,
                "grace_s": self.grace_s,
                **self.settings,
            }
        known = {key: value for key, value in self.tokens.items() if _knows(tree, key)}
        return found | ({"tokens": known} if known else {})


def _knows(tree: Path, setting: str) -> bool:
    """Whether a checkout has that setting of ``[tokens]``."""
    return setting in (tree / "config.toml").read_text("utf-8")


async def _play(scenario: Scenario, stage: Stage, seed: int) -> Figures:
    clock, books = stage.clock, stage.books.values()
    await scenario.fill(stage)
    figures = Figures(
        scenario.name,
        str(stage.cluster.tree),
        seed,
        scenario.factor,
        sum(len(book.grants) for book in books),
    )
    clock.run_at(scenario.factor)
    stage.began_s = clock.now_s()
    watches = [
        asyncio.create_task(watch(clock, figures)) for watch in (_watch_lag, _follow_machine)
    ]
    try:
        await scenario.play(stage)
        figures.seconds = clock.now_s() - stage.began_s
        for book in books:
            book.close_lates()
        clock.run_at(1.0)
        await clock.sleep(1.0)  # events leave their outbox
        await _collect(scenario, stage, figures)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return figures


async def _watch_lag(clock: FastClock, figures: Figures) -> None:
    while True:
        before = clock.now_s()
        await asyncio.sleep(LAG_EVERY_S)
        lag_s = clock.now_s() - before - LAG_EVERY_S * clock.factor
        figures.lag_s = max(figures.lag_s, lag_s)


async def _follow_machine(clock: FastClock, figures: Figures) -> None:
    """
    Run slower where the machine has nothing left to give.

    A scenario is about times in proportion; nodes that wait for a processor are no part of it.
    """
    while True:
        before = _processor_ticks()
        await asyncio.sleep(MACHINE_EVERY_S)
        idle, total = (now - then for now, then in zip(_processor_ticks(), before, strict=True))
        if clock.factor > FACTOR_LEAST and total and idle / total < IDLE_LEAST:
            clock.slow(SLOWER, FACTOR_LEAST)
            figures.factor = min(figures.factor, clock.factor)


def _processor_ticks() -> tuple[int, int]:
    """Return the ticks in which the machine's processors were idle, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text("ascii").split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


async def _collect(scenario: Scenario, stage: Stage, figures: Figures) -> None:
    books = list(stage.books.values())
    answers = sum((book.kinds for book in books), Counter[str]())
    figures.asked, figures.answers = answers.total(), dict(answers.most_common())
    figures.wasted = figures.asked - answers[WELL]
    figures.live = sum(grant.alive for book in books for grant in book.grants.values())
    figures.alive_of = sum(
        grant.alive or not grant.bad for book in books for grant in book.grants.values()
    )
    events = stage.cluster.events()
    figures.events = dict(Counter(kind for kind, _ in events).most_common())
    healthy = {f"{book.name}/{grant.name}" for book in books for grant in book.healthy}
    accounts = await stage.cluster.accounts()
    figures.states = dict(Counter(one["state"] for one in accounts).most_common())
    told = {
        data.get("account", "")
        for kind, data in events
        if kind.removeprefix("account.") in GIVEN_UP
    }
    wrong = (told | {one["account"] for one in accounts if one["state"] in GIVEN_UP}) & healthy
    figures.given_up = len(wrong)
    figures.recovery_s = stage.recovery_s
    figures.late = scenario.late(stage)
    figures.errors = dict(stage.cluster.logged().most_common(5))
    stage.states = {one["account"]: one for one in accounts}
    stage.events = events
    figures.checks = [
        Check("healthy accounts given up", figures.given_up, 0),
        Check("healthy accounts late", figures.late, int(scenario.late_max * len(healthy))),
        *scenario.judge(stage, figures),
    ]
