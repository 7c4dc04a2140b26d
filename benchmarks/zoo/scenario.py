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

from benchmarks.connections import Broken
from benchmarks.machine import processor_ticks

from .cluster import GIVEN_UP, Cluster, cluster_up
from .fast_clock import FastClock, fast_clock
from .provider import WELL, Book, Grant, Reply, serving

LAG_EVERY_S = 0.02
MACHINE_EVERY_S = 0.5
IDLE_LEAST = 0.15
"""Of the machine's processors: with less, nodes wait for each other and for whoever else runs."""
SLOWER, FACTOR_LEAST = 0.7, 4.0
IDLE_AGAIN, QUICKER, AGAIN_LOOKS = 0.5, 1.3, 4
"""So much is idle at so many looks in a row: the clock may run faster again."""
RECOVERY_FACTOR = 5.0
"""A backlog goes at once, as fast as the product can by its clock, and not this machine."""
PROVEN_S = 300.0
CROWD = 0.5


@dataclass(frozen=True, slots=True)
class Rule:
    """
    A rule of the product that a scenario guards: without it a limit of the scenario is missed.

    ``edits``: file of the package, what stands there once, and what takes its place without the
    rule; ``python -m tests.meta.guards --zoo`` plays the scenario then.
    """

    what: str
    edits: tuple[tuple[str, str, str], ...]


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
    too_soon: int = 0
    """Requests for an account before the time that a Retry-After named for it."""
    used_s: float = 0.0
    """Processor time of nodes and stores."""
    lag_s: float = 0.0
    """The longest by which the machine was late for the driver itself, by the scenario's clock."""
    checks: list[Check] = field(default_factory=list)

    @property
    def provider_events(self) -> int:
        """How many events told of a provider."""
        return self._events_of("provider.")

    @property
    def account_events(self) -> int:
        """How many events told of an account."""
        return self._events_of("account.")

    def _events_of(self, what: str) -> int:
        return sum(count for kind, count in self.events.items() if kind.startswith(what))

    @property
    def kept(self) -> bool:
        """Whether every limit was."""
        return all(check.kept for check in self.checks)


class Stage:
    """A running cluster, the providers' books, and the time."""

    def __init__(
        self,
        clock: FastClock,
        factor: float,
        cluster: Cluster,
        books: dict[str, Book],
        dice: random.Random,
    ) -> None:
        self.clock = clock
        self.factor = factor
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

    def told(self, kind: str) -> Counter[str]:
        """How often that was told of each provider."""
        return Counter(data.get("provider", "") for told, data in self.events if told == kind)

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

    async def until_told(self, kind: str, limit_s: float) -> float:
        """Seconds until an event of that kind was sent, ``limit_s`` when none was by then."""
        began = self.clock.now_s()
        while kind not in dict(self.cluster.events()) and self.clock.now_s() < began + limit_s:
            await self.clock.sleep(1.0)
        return min(limit_s, self.clock.now_s() - began)

    async def recover(self, limit_s: float) -> None:
        """From here on the provider is well: how long until nobody healthy is without a token."""
        self.mark("well")
        self.clock.run_at(min(self.factor, RECOVERY_FACTOR))
        self.recovery_s = await self.until(
            lambda: not any(book.late_now() for book in self.books.values()), limit_s
        )
        self.clock.run_at(self.factor)


def given(**values: Any) -> Mapping[str, Any]:
    """Settings, or attributes of a scenario."""
    return values


class Scenario:
    """
    One scripted provider (or more) and what happens. Times are the scenario's own.

    Subclasses: their docstring's first line says what it is; ``rule`` is what they guard, ``play``
    its course, ``reply`` how a request is answered (another answer, None for a pair, or the seconds
    that a pair takes), ``judge`` what has to hold beyond the usual.

    All settings but those of the provider itself are the product's defaults, and each node has a
    store of its own. Where a scenario differs, a comment there says why.
    """

    rule: Rule
    factor = 20.0
    fleet = 2000
    """Accounts of all providers together."""
    crowd = CROWD
    """Share of the accounts that falls due together, the others one by one."""
    proven = True
    """Every account was refreshed well once before it begins; else it begins with the import."""
    one_store = False
    """All nodes have one store, for the clock runs too fast for stores that copy each other."""
    life_s = 1200.0
    margin_s = 300.0
    grace_s = 0.0
    bad = 0
    """Accounts of each provider that the script never lets succeed: imported as it begins."""
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
        # One store takes less of a busy machine than three.
        short = {"one_store": True, **self.quick}
        for name, value in (short if quick else {}).items():
            setattr(self, name, value)

    @property
    def name(self) -> str:
        """Its module's."""
        return type(self).__module__.rpartition(".")[2]

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | float | None:
        """How a request is answered."""
        raise NotImplementedError

    def book_of(self, name: str, clock: FastClock) -> Book:
        """A provider's book."""
        return Book(name, clock, self.life_s, self.margin_s, self.grace_s)

    def accounts_of(self, name: str) -> int:
        """How many accounts a provider has, those that fail for good aside."""
        return self.fleet // len(self.providers)

    async def fill(self, stage: Stage) -> None:
        """Import the accounts, before the clock is made fast."""
        for name, book in stage.books.items():
            grants = book.add(self.accounts_of(name), stage.dice, crowd=self.crowd)
            if self.proven:
                for grant in grants:
                    grant.expires_s = stage.clock.now_s() + 1.0
            await stage.cluster.put(book, grants)

    async def play(self, stage: Stage) -> None:
        """The course of events."""
        raise NotImplementedError

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        """The scenario's own limits."""
        raise NotImplementedError

    async def run(self, tree: Path, seed: int, folder: Path) -> Figures:
        """Play it against the checkout at ``tree``, its data in ``folder``; what was found."""
        with fast_clock(folder) as clock:
            books = {name: self.book_of(name, clock) for name in self.providers}
            for book in books.values():
                book.script, book.proving = self.reply, self.proven
            async with (
                serving(*books.values()),
                cluster_up(
                    tree,
                    folder,
                    clock,
                    self.sections(books, tree),
                    factor=self.factor,
                    one_store=self.one_store,
                ) as cluster,
            ):
                stage = Stage(clock, self.factor, cluster, books, random.Random(seed))
                return await _play(self, stage, seed)

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
                "margin_s": book.margin_s,
                "grace_s": book.grace_s,
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
    if scenario.proven:
        await _prove(stage)
    for book in books:
        await stage.cluster.put(book, book.add(scenario.bad, stage.dice, bad=True))
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


async def _prove(stage: Stage) -> None:
    """
    Return when every account was refreshed well once; nothing of it counts.

    Raises: Broken: some were not.
    """
    books = stage.books.values()

    def unproven() -> list[Grant]:
        return [one for book in books for one in book.grants.values() if not one.number]

    await stage.until(lambda: not unproven(), PROVEN_S)
    if left := unproven():
        raise Broken(f"{len(left)} accounts were not refreshed once in {PROVEN_S:.0f} s")
    await stage.clock.sleep(1.0)  # What was answered last is stored.
    for book in books:
        book.begin()


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
    looks = 0
    while True:
        before = processor_ticks()
        await asyncio.sleep(MACHINE_EVERY_S)
        idle, total = (now - then for now, then in zip(processor_ticks(), before, strict=True))
        looks = looks + 1 if total and idle / total > IDLE_AGAIN else 0
        if clock.factor > FACTOR_LEAST and total and idle / total < IDLE_LEAST:
            clock.slow(SLOWER, FACTOR_LEAST)
            figures.factor = min(figures.factor, clock.factor)
        elif looks >= AGAIN_LOOKS:
            clock.quicken(QUICKER)


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
    figures.too_soon = sum(book.too_soon for book in books)
    figures.used_s = stage.cluster.used_s()
    figures.late = scenario.late(stage)
    figures.errors = dict(stage.cluster.logged().most_common(5))
    stage.states = {one["account"]: one for one in accounts}
    stage.events = events
    figures.checks = [
        Check("healthy accounts given up", figures.given_up, 0),
        Check("healthy accounts late", figures.late, int(scenario.late_max * len(healthy))),
        Check("requests before the time that was named", figures.too_soon, 0),
        *scenario.judge(stage, figures),
    ]
