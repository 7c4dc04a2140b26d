"""
What happens to simulated Raft members: scenes that tests ask for, and storms of faults drawn by a
seed.
"""

from __future__ import annotations

from support.raft.simulation import SETTLE_S, Ours, World

from tidewarden.raft import pysync
from tidewarden.raft.membership import Seat


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
    """Faults at random times, claims all along."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, world.random
        self.names = list(world.members)
        self.waiting: list[tuple[float, str, str]] = []  # when, what, whom
        self.claims = self.faults = 0

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
