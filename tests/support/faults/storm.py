"""
What a fault is, the catalogue of them all, and the storm that brings them upon a cluster, drawn by
a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from support.cluster.harness import START_S, Node, until
from support.faults.faulty import FaultyCluster
from support.providers.scripted_provider import ScriptedProvider

Act = Callable[["Storm"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """
    One kind. ``needs``: the part of a :class:`FaultyCluster` that may be absent. ``weight``: how
    often it is drawn.
    """

    name: str
    act: Act
    needs: str = ""
    weight: int = 2
    process: bool = False
    """It ends or stops processes; of two faults at a time at most one does."""


CATALOGUE: dict[str, Fault] = {}


def fault(
    name: str,
    needs: str = "",
    weight: int = 2,
    process: bool = False,
    catalogue: dict[str, Fault] = CATALOGUE,
) -> Callable[[Act], Act]:
    """Put a fault into the catalogue."""

    def enter(act: Act) -> Act:
        catalogue[name] = Fault(name, act, needs, weight, process)
        return act

    return enter


@dataclass
class Storm:
    """
    Brings faults upon a cluster: of :mod:`support.faults.faulty`, or of
    :mod:`support.faults.hosts`. ``injected``: how many of each kind.
    """

    cluster: Any
    dice: random.Random
    provider: ScriptedProvider | None = None
    longest_s: float = 4.0
    injected: Counter[str] = field(default_factory=Counter)
    catalogue: dict[str, Fault] = field(default_factory=lambda: CATALOGUE)
    whole: Callable[[], str] = str
    """Waits, after a fault, until the cluster is whole again; returns what to print of it."""

    def able(self) -> list[Fault]:
        """The faults that can be brought about here."""
        return [one for one in self.catalogue.values() if one.needs not in self.cluster.absent]

    def round(self) -> Iterator[Fault]:
        """Every kind once, in an order of the dice, then any, by weight."""
        first = self.able()
        self.dice.shuffle(first)
        yield from first
        while True:
            yield from self.dice.choices(self.able(), [one.weight for one in self.able()])

    def drawn(self, together: float) -> Iterator[list[Fault]]:
        """That share of the faults comes with another one; of two one ends no process."""
        for one in self.round():
            some = [one]
            if self.dice.random() < together:
                second = self.dice.choice([other for other in self.able() if not other.process])
                some += [second] if second is not one else []
            yield some

    async def strike(self, *faults: Fault) -> None:
        """These faults at a time, each with its end; what they killed is started again."""
        for one in faults:
            self.injected[one.name] += 1
        try:
            await asyncio.gather(*(one.act(self) for one in faults))
        finally:
            self.cluster.calm()

    async def last(self, low_s: float = 0.3) -> None:
        """As long as a fault goes on."""
        await asyncio.sleep(self.dice.uniform(low_s, self.longest_s))

    async def leader(self) -> Node:
        """Who leads; any node when nobody does."""
        found = await asyncio.to_thread(self.cluster.sweeper)
        return found[0] if found else self.dice.choice(list(self.cluster.nodes.values()))

    async def follower(self) -> Node:
        leader = await self.leader()
        return self.dice.choice(
            [node for node in self.cluster.nodes.values() if node is not leader]
        )

    async def someone(self) -> Node:
        return self.dice.choice(list(self.cluster.nodes.values()))


async def healed(cluster: FaultyCluster) -> Node:
    """
    Every node serves and one leads, without anybody's doing beyond :meth:`FaultyCluster.calm`.
    """
    for node in cluster.nodes.values():
        await asyncio.to_thread(until, node.ready, START_S, what=f"{node.name} serves")
    leader: Node = await asyncio.to_thread(cluster.leader, 60.0)
    return leader
