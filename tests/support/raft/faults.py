"""
What happens to simulated Raft members: scenes that tests ask for, and storms of faults drawn by a
seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from support.raft.simulation import SETTLE_S, Ours, World

from tidewarden.raft import pysync
from tidewarden.raft.membership import Seat
from tidewarden.raft.store_facts import StoreFacts, StoreMember, set_text


def elected(world: World, limit_s: float = SETTLE_S) -> str:
    """
    Run until one member leads, all follow it, and everybody has applied everything; returns its
    address.
    """

    def known(seat: Seat) -> bool:  # A member whose folder was lost has to be admitted anew.
        own = (
            world.members[seat.address].secret("raftLog").mark
            if seat.address in world.alive()
            else ""
        )
        return seat.mark in ("", own)

    def settled() -> bool:
        leaders = world.believers()
        if len(leaders) != 1:
            return False
        leader = world.members[leaders[0]]
        named = getattr(leader.voter, "members", None)
        inside = (
            set(world.members)
            if named is None
            else {seat.address for seat in named.seats.values() if known(seat)}
        )
        voters = [world.members[address].voter for address in world.alive() if address in inside]
        commit = leader.voter.raftCommitIndex
        return (
            commit == leader.secret("raftLog")[-1][1]
            and {voter.raftLastApplied for voter in voters} == {commit}
            and {voter._getLeader() for voter in voters} == {leader.voter.selfNode}
        )

    if not world.run(limit_s, settled):
        world.broken(f"no leader that all follow within {limit_s:g} s")
    return world.believers()[0]


def others(world: World, *excepted: str) -> list[str]:
    return [address for address in world.alive() if address not in excepted]


def commit(world: World, address: str, number: int, limit_s: float = 2.0) -> None:
    """Have ``address`` commit one claim."""
    world.claim(address, number)
    if (
        not world.run(limit_s, lambda: number in world.answers)
        or world.answers[number][1] != pysync.SUCCESS
    ):
        world.broken(f"{address} does not commit: {world.answers.get(number)}")


class Storm:
    """Faults at random times, claims and commands about the stores all along."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, world.random
        self.names = list(world.members)
        self.waiting: list[tuple[float, str, str]] = []  # when, what, whom
        self.claims = self.faults = 0
        self.orders = random.Random(f"{world.seed} orders")

    def blow(self, seconds: float) -> None:
        """Go on for so long, then mend everything."""
        world = self.world
        end, strike = world.now + seconds, world.now + 2
        while world.now < end:
            if world.now > strike:
                strike = world.now + self.random.uniform(0.2, 2.5)
                self.faults += 1
                self._strike()
            world.run(0.1)
            for at, what, address in list(self.waiting):
                if world.now > at:
                    self.waiting.remove((at, what, address))
                    getattr(world, what)(address)
            if self.random.random() < 0.3 and world.alive():
                self._claim()
            if self.orders.random() < 0.5 and issubclass(world.breed, Ours):
                self._order()
        world.heal()
        world.delay_s, world.late = 0.002, 0.0
        for _, what, address in self.waiting:
            getattr(world, what)(address)
        self.waiting.clear()

    def _claim(self) -> None:
        leaders = [
            address for address in self.world.believers() if not self.world.members[address].paused
        ]
        if leaders:
            self.claims += 1
            self.world.claim(self.random.choice(leaders), self.claims)

    def _order(self) -> None:
        """Have anybody command what fits the facts that it has, which may be old."""
        world, chance = self.world, self.orders
        asked = [name for name in world.alive() if not world.members[name].paused]
        if not asked:
            return
        address = chance.choice(asked)
        voter = world.members[address].voter
        seats = () if voter.members is None else sorted(voter.members.seats)
        if not seats:
            return
        world.order(address, self._command(voter.stores, seats))

    def _command(self, facts: StoreFacts, seats: Sequence[str]) -> tuple[Any, ...]:
        chance, node = self.orders, self.orders.choice(seats)
        word = chance.choice("abc")
        if not facts.view:
            return "found", node, word, 0
        known = {member.node: member for member in sorted(facts.in_sync)}
        kind = chance.random()
        if kind < 0.3:
            won = known[chance.choice(sorted(known))]
            return "elect", facts.view, *won, word, chance.choice(["", facts.primary]), 0
        if kind < 0.4:
            return chance.choice([("look",), ("no command", node), ("change", facts.view)])
        # mostly it grows to all that there are: members come and go only then
        size = len(seats) if chance.random() < 0.7 else chance.randint(1, len(seats))
        chosen = [known.get(name, StoreMember(name, word)) for name in chance.sample(seats, size)]
        in_sync = {facts.primary_member, *(one for one in chosen if one.node != facts.primary)}
        return "change", facts.view, facts.version, set_text(in_sync)

    def _strike(self) -> None:
        world, chance = self.world, self.random
        names = chance.sample(self.names, len(self.names))
        well = [address for address in world.alive() if not world.members[address].paused]
        victim = chance.choice(well) if well else None
        kind = chance.choice(
            (
                "part",
                "part",
                "link",
                "way",
                "heal",
                "heal",
                "kill",
                "all",
                "pause",
                "pause",
                "slow",
                "hand",
                "fill",
            )
        )
        if kind == "part":
            size = chance.randint(1, len(names) - 1)
            world.part(names[:size], names[size:])
        elif kind == "link":
            world.cut(names[0], names[1], hold=chance.random() < 0.5)
            world.cut(names[1], names[0], hold=chance.random() < 0.5)
        elif kind == "way":
            world.cut(names[0], names[1], hold=chance.random() < 0.5)
        elif kind == "heal":
            world.heal()
        elif kind == "slow":
            world.delay_s = chance.choice((0.001, 0.01, 0.05, 0.15))
        elif kind == "all" and chance.random() < 0.3:
            for address in well:
                self._end(address, "kill", "start", chance.uniform(0.1, 1.0))
        elif victim is not None and kind == "kill":
            self._end(victim, "kill", "start", chance.uniform(0.05, 3.0))
        elif victim is not None and kind == "pause":
            self._end(victim, "pause", "resume", chance.uniform(0.05, 5.0))
        elif victim is not None and kind == "fill" and world.breed is Ours:
            self._end(victim, "fill", "free", chance.uniform(0.5, 8.0))
        elif victim is not None and kind == "hand" and world.breed is Ours:
            world.running = world.members[victim]
            world.members[victim].voter.give_up()

    def _end(self, address: str, what: str, then: str, after_s: float) -> None:
        getattr(self.world, what)(address)
        self.waiting.append((self.world.now + after_s, then, address))
