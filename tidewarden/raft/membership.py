"""
The cluster commits who its members are, version by version.

Here are such a version, and what makes the next version of it.

The newest version in a member's log holds, committed or not, as Raft has it; a leader begins the
next one only when the last is committed and it has committed an entry of its own term. Two
neighbours differ by one vote at most, so any majority of the one meets any majority of the other.
All of this is plain decisions, without socket, thread or clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidewarden.errors import Exists, NotFound

NOT_THERE, ANOTHER_FOLDER = "not there", "another folder"
"""Why somebody is told that it is no member."""

MEMBERS_MAX = 99
_KINDS = ([int, tuple], [int, tuple, str])
"""What an entry of the log has: without a word, as versions of before wrote it, or with one."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Describes one member's place."""

    address: str
    """``host:port`` of its Raft port."""
    mark: str = ""
    """
    Made at random with its Raft folder and kept with its votes; empty until the member was heard.
    """
    votes: bool = True
    """
    Whether it counts for a majority. One that joins does not, until it has been heard and has
    everything.
    """


@dataclass(frozen=True, slots=True)
class Members:
    """Holds one version of the members. ``version`` begins with 1 and grows by one."""

    version: int
    seats: Mapping[str, Seat]
    word: str = ""
    """
    Drawn at random when the cluster is founded; a node that speaks under another word belongs to
    another cluster, whatever its name. Empty: it was founded by a version without.
    """

    @property
    def voters(self) -> frozenset[str]:
        """Return the names of the members that count for a majority."""
        return frozenset(name for name, seat in self.seats.items() if seat.votes)

    def addresses(self) -> dict[str, str]:
        """Return every member's Raft address by name."""
        return {name: seat.address for name, seat in self.seats.items()}

    def plain(self) -> tuple[Any, ...]:
        """
        Return the members as an entry of the log has them.

        An entry holds version and seats, and the word, where there is one.
        """
        seats = tuple(
            (name, seat.address, seat.mark, seat.votes) for name, seat in sorted(self.seats.items())
        )
        return (self.version, seats, self.word) if self.word else (self.version, seats)

    # What the next version can be.

    def joined(self, name: str, address: str) -> Members:
        """
        Return the next version, with a new member that does not vote yet.

        Raises: Exists: the name or the address is a member's.
        """
        if name in self.seats:
            found = f"{name} is a member already"
            raise Exists(
                f"{found}; a node whose folder is new leaves first: tidewarden cluster leave"
                f" {name}."
            )
        for known, seat in self.seats.items():
            if seat.address == address:
                raise Exists(
                    f"That is the address of the member {known}; allowed: one that no member has."
                )
        return self._with({**self.seats, name: Seat(address, votes=False)})

    def left(self, name: str) -> Members:
        """
        Return the members without one.

        Raises: NotFound: there is none of that name, or it is the last.
        """
        if name not in self.seats:
            raise NotFound(
                f"There is no member {name!r}; there are {', '.join(sorted(self.seats))}."
            )
        if len(self.voters - {name}) == 0:
            raise NotFound(f"{name} is the last member that votes; without it there is no cluster.")
        return self._with({known: seat for known, seat in self.seats.items() if known != name})

    def met(self, marks: Mapping[str, str]) -> Members:
        """
        Return the members with the marks of those that were heard for the first time.

        It is the same object when there are none.
        """
        fresh = {
            name: marks[name]
            for name, seat in self.seats.items()
            if not seat.mark and marks.get(name)
        }
        if not fresh:
            return self
        seats = {
            n: dataclasses.replace(s, mark=fresh[n]) if n in fresh else s
            for n, s in self.seats.items()
        }
        return self._with(seats)

    def seated(self, caught_up: Iterable[str]) -> Members:
        """
        Return the members with a vote for the first that has everything and no vote yet.

        It is the same object when there is none.
        """
        for name in sorted(caught_up):
            seat = self.seats.get(name)
            if seat is not None and seat.mark and not seat.votes:
                return self._with({**self.seats, name: dataclasses.replace(seat, votes=True)})
        return self

    def moved(self, addresses: Mapping[str, str]) -> Members:
        """Return the same members at other addresses; the same object when those are the same."""
        seats = {
            n: dataclasses.replace(s, address=addresses.get(n, s.address))
            for n, s in self.seats.items()
        }
        return self if seats == self.seats else self._with(seats)

    def named(self, word: str) -> Members:
        """Return the members with a word for the cluster; the same object when it has one."""
        return self if self.word else Members(self.version + 1, self.seats, word)

    def _with(self, seats: Mapping[str, Seat]) -> Members:
        return Members(self.version + 1, seats, self.word)


def founded(seeds: Mapping[str, str], marks: Mapping[str, str], word: str) -> Members:
    """
    Return the first version of the members, of a cluster's first start, which is to be ``word``.

    It has those that the configuration names, all of them with a vote.
    """
    seats = {name: Seat(address, marks.get(name, "")) for name, address in seeds.items()}
    return Members(1, seats, word)


def read(value: Any) -> Members | None:
    """Read what :meth:`Members.plain` made; None for anything else. Never raises."""
    if not isinstance(value, tuple) or [type(item) for item in value] not in _KINDS:
        return None
    if value[0] <= 0 or (len(value) == 3 and not value[2]):
        return None
    seats: dict[str, Seat] = {}
    if not 0 < len(value[1]) <= MEMBERS_MAX:
        return None
    for row in value[1]:
        if not isinstance(row, tuple) or [type(item) for item in row] != [str, str, str, bool]:
            return None
        name, address, mark, votes = row
        if name in seats or not address.rpartition(":")[2].isdecimal():
            return None
        seats[name] = Seat(address, mark, votes)
    members = Members(value[0], seats, *value[2:])
    return members if members.voters else None


def fault(old: Members | None, new: Members, leader: str, heard: Collection[str]) -> str:
    """
    Say why ``leader`` must not make ``new`` of ``old``, or "".

    ``old`` is None while the cluster is being founded; ``heard``: the members that answered within
    the last election time.
    """
    if old is None:
        return "" if new.version == 1 else "the cluster is not founded yet"
    if new.version != old.version + 1:
        return f"it was made of version {new.version - 1}, and version {old.version} is in force"
    if len(old.voters ^ new.voters) > 1:
        return "it changes more than one vote"
    if leader not in new.voters:
        return f"{leader} leads, and hands leadership over first"
    there = len(new.voters & {leader, *heard})
    if new.voters != old.voters and 2 * there <= len(new.voters):
        return f"only {there} of the {len(new.voters)} that would vote then can be heard"
    return ""
