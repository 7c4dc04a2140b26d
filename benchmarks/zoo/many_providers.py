"""Thousands of providers with a few accounts each, beside one provider with all of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster import Cluster, cluster_up
from .fast_clock import FastClock, fast_clock
from .provider import WELL, Book, Grant, Reply, serving
from .scenario import Check, Figures, Rule, Scenario, Stage, given

RATIO_MAX = 1.5
ROUNDS = 5
EACH = 10
TOLD_MS = 0.3
"""What each further provider may add to an answer that tells of all."""
SETTLED_S = 10.0


@dataclass
class Costs:
    """What a cluster with so many providers costs."""

    ready_s: float
    stats_s: float
    metrics_s: float
    processor_ms: float
    """Of nodes and store, a refresh, with all that they do beside."""
    resident_mb: float
    told: bool
    """Whether /metrics has the tokens' figures."""


class ManyProviders(Scenario):
    """3,000 providers of ten accounts each, beside one of 30,000, by the machine's own clock."""

    rule = Rule(
        "the queue of a client has one shard where the store is one server",
        (
            (
                "tokens/system_queues.py",
                "shards=CLUSTER_SHARDS if clustered else 1,",
                "shards=CLUSTER_SHARDS,",
            ),
        ),
    )
    factor = 1.0
    fleet = 30_000
    life_s = 600.0
    margin_s = 300.0
    loading_s = 60.0
    watched_s = 30.0
    quick = given(fleet=2000, life_s=400.0, loading_s=10.0, watched_s=10.0)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return None

    async def run(self, tree: Path, seed: int, folder: Path) -> Figures:
        figures = Figures(self.name, str(tree), seed, self.factor, self.fleet)
        costs = []
        with fast_clock(folder) as clock:
            for providers in (1, self.fleet // EACH):
                inside = folder / str(providers)
                inside.mkdir()
                costs.append(
                    await self._costs(figures, clock, tree, inside, providers, random.Random(seed))
                )
        one, many = costs
        told_ms = TOLD_MS * self.fleet / EACH
        figures.checks = [
            Check(f"{what}, {unit}; one provider: {a:,.4g}", b, RATIO_MAX * a + more)
            for what, unit, a, b, more in (
                ("start", "s", one.ready_s, many.ready_s, 0.0),
                ("T.STATS", "ms", one.stats_s * 1000, many.stats_s * 1000, told_ms),
                ("/metrics", "ms", one.metrics_s * 1000, many.metrics_s * 1000, told_ms),
                ("processor time a refresh", "ms", one.processor_ms, many.processor_ms, 0.0),
                ("memory", "MB", one.resident_mb, many.resident_mb, 0.0),
            )
        ]
        figures.checks.append(
            Check("tells the tokens' figures at /metrics", many.told, 1, least=True)
        )
        return figures

    async def _costs(
        self,
        figures: Figures,
        clock: FastClock,
        tree: Path,
        folder: Path,
        providers: int,
        dice: random.Random,
    ) -> Costs:
        book = Book("shop", clock, self.life_s, self.margin_s)
        book.script = self.reply
        names = [f"shop{number}" for number in range(providers)]
        async with serving(book):
            settings = {
                "token_url": book.url,
                "client_id": "c0",
                "client_secret": "not a secret",
                "margin_s": self.margin_s,
            }
            sections: dict[str, dict[str, Any]] = {f"providers.{name}": settings for name in names}
            async with cluster_up(tree, folder, None, sections) as cluster:
                grants, soon = (
                    book.add(self.fleet, dice, soon_s=self.loading_s),
                    clock.now_s() + self.loading_s,
                )
                await cluster.put(
                    book, grants, lambda grant: names[int(grant.name[1:]) % providers]
                )
                # those that fell due together are over
                await clock.sleep(soon - clock.now_s() + SETTLED_S)
                costs = await self._measure(cluster, book, names[-1])
        figures.asked += book.kinds.total()
        figures.wasted += book.kinds.total() - book.kinds[WELL]
        figures.late += len({late.grant.name for late in book.lates})
        figures.live += len(book.healthy)
        figures.alive_of += self.fleet
        return costs

    async def _measure(self, cluster: Cluster, book: Book, last: str) -> Costs:
        asked, used_s = book.kinds.total(), cluster.used_s()
        await asyncio.sleep(self.watched_s)
        spent_ms = (cluster.used_s() - used_s) * 1000 / max(1, book.kinds.total() - asked)
        text = await cluster.metrics()
        return Costs(
            cluster.ready_s,
            await _seconds(lambda: cluster.say("T.STATS")),
            await _seconds(cluster.metrics),
            spent_ms,
            cluster.resident_bytes() / 1e6,
            f'provider="{last}"' in text and "tidewarden_tokens_accounts" in text,
        )

    async def play(self, stage: Stage) -> None:
        """It has no course: what is measured goes on all the time."""

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return []


async def _seconds(ask: Callable[[], Awaitable[Any]]) -> float:
    """The quickest of some rounds: others use this machine, too."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await ask()
        found.append(time.perf_counter() - began)
    return min(found)
