"""A storm of faults in which members come and go, and folders are lost."""

from __future__ import annotations

from support.raft.faults import Storm
from support.raft.simulation import World

from tidewarden.errors import Error

POOL = tuple(f"n{number}" for number in range(7))


class MembershipStorm(Storm):
    """
    Also asks for changes, starts newcomers, ends who has left, and starts it again on an empty
    folder.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.changes = 0

    def _strike(self) -> None:
        if len(self.names) > 1:
            super()._strike()
        self._bury_the_gone()
        asked = [
            address for address in self.world.alive() if not self.world.members[address].paused
        ]
        if asked and self.random.random() < 0.6:
            self._change(self.random.choice(asked))
        self.names = list(self.world.members)

    def _change(self, asked: str) -> None:
        world, chance = self.world, self.random
        voter = world.members[asked].voter
        if voter.members is None:
            return
        name = chance.choice(POOL)
        world.running = world.members[asked]
        try:
            if name not in voter.members.seats:
                voter.propose(voter.members.joined(name, f"{name}:1"))
                if f"{name}:1" not in world.members:
                    world.newcomer(name, world.members)
            elif len(voter.members.voters) > 2:
                voter.propose(voter.members.left(name))
            self.changes += 1
        except Error:
            return

    def _bury_the_gone(self) -> None:
        """
        Who left by a committed change is ended, and its folder emptied: it will be somebody new,
        and wait to be let in.
        """
        world = self.world
        committed = [
            voter.members
            for address in world.believers()
            if (voter := world.members[address].voter).members is not None and voter.committed()
        ]
        if not committed:
            return
        newest = max(committed, key=lambda members: members.version)
        for address, member in list(world.members.items()):
            if member.name not in newest.seats and member.voter is not None and not member.paused:
                self.waiting = [one for one in self.waiting if one[2] != address]
                world.newcomer(member.name, [one for one in world.members if one != address])
