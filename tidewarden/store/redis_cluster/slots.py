"""
Maps keys to slots and slots to servers of a Redis Cluster.

It decides which server's word counts.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SLOTS = 16384

# servers whose latest answer is kept, so that the same one is not gone through again
LATEST_MAX = 1000


@lru_cache(maxsize=65536)
def slot_of(key: str | bytes | int) -> int:
    """Return a key's slot: CRC16 (XMODEM) of what stands in its first braces, else of all of it."""
    raw = key if isinstance(key, bytes) else str(key).encode()
    begin = raw.find(b"{")
    if begin >= 0:
        end = raw.find(b"}", begin + 1)
        if end > begin + 1:
            raw = raw[begin + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


@dataclass(frozen=True, slots=True)
class Claim:
    """
    Holds a server's claim about slots.

    The slots ``first`` to ``last`` belong to the primary at ``place`` (host:port), since ``epoch``.

    ``name``: the primary's node id, "": it was not told.
    """

    first: int
    last: int
    place: str
    epoch: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class SlotsReply:
    """
    Holds the slots and servers of a cluster, as one server tells them.

    ``trouble``: why it would serve nobody now, or "".

    ``members``: the node ids of all servers that it knows, itself among them.
    """

    claims: tuple[Claim, ...]
    replicas: tuple[str, ...] = ()
    trouble: str = ""
    members: frozenset[str] = frozenset()


def place_of(host: str, port: int) -> str:
    """Return a server's name in this room: ``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(place: str) -> str:
    """Return the host of a place, without brackets."""
    return place.rpartition(":")[0].strip("[]")


def read_slots(slots: Any, nodes: bytes, asked: str, trouble: str = "") -> SlotsReply:
    """
    Parse a server's answers to CLUSTER SLOTS and CLUSTER NODES.

    Only the latter has the epochs.

    https://valkey.io/commands/cluster-slots, https://valkey.io/commands/cluster-nodes
    """
    epochs, members = {}, set()
    for line in nodes.decode("utf-8", "replace").splitlines():
        words = line.split()
        if len(words) >= 8 and words[6].isdecimal():
            epochs[words[0]] = int(words[6])
            members.add(words[0])
    claims, replicas = [], dict[str, None]()
    for first, last, primary, *others in slots:
        name = primary[2].decode()
        claims.append(Claim(first, last, _place(primary, asked), epochs.get(name, 0), name))
        for one in others:
            replicas[_place(one, asked)] = None
    return SlotsReply(tuple(claims), tuple(replicas), trouble, frozenset(members))


def _place(server: Any, asked: str) -> str:
    """Return a server's place; one that does not know or tell its address is where it was asked."""
    host = server[0].decode() if server[0] else ""
    return place_of(host if host not in ("", "?") else host_of(asked), server[1])


class SlotMap:
    """
    Maps slots to primaries by the newest word on each: the greater epoch wins, of equals the later.

    That is the cluster's own rule, so a server that is behind takes nothing back.
    """

    def __init__(self) -> None:
        self._owners = [""] * SLOTS
        self._epochs = [0.0] * SLOTS
        self._turns = [0] * SLOTS
        self._primaries: tuple[str, ...] | None = ()  # None: to be counted anew
        self._redirected: set[int] = set()
        self._latest: dict[str, SlotsReply] = {}
        self._names: dict[str, str] = {}  # of primaries, by place

    def owner(self, slot: int) -> str:
        """Return the place of the primary that has the slot; "": none is known to."""
        return self._owners[slot]

    def turn(self, slot: int) -> int:
        """
        Return how often the slot has changed its owner.

        Two equal values mean that nothing was sent on between them.
        """
        return self._turns[slot]

    def _own(self, slot: int, place: str) -> None:
        self._owners[slot] = place
        self._turns[slot] += 1
        self._primaries = None

    def primaries(self) -> tuple[str, ...]:
        """Return the places of all servers that have slots, in their order."""
        if self._primaries is None:
            self._primaries = tuple(dict.fromkeys(filter(None, self._owners)))
        return self._primaries

    def uncovered(self) -> int:
        """Return how many slots have no known server."""
        return self._owners.count("")

    def is_foreign(self, answer: SlotsReply) -> bool:
        """
        Return whether a server knows none of the primaries.

        Then it has left their cluster, or is of another; its epochs are another cluster's, and may
        be the greater ones. A primary that has failed is known on, until it is forgotten; by then
        its successor is one of the primaries.
        """
        names = {self._names[place] for place in self.primaries() if place in self._names}
        return bool(names and answer.members) and names.isdisjoint(answer.members)

    def merge(self, asked: str, answer: SlotsReply) -> bool:
        """Take over the reply of the server at ``asked``; return whether anything has changed."""
        if self._latest.get(asked) == answer:
            return False
        if len(self._latest) >= LATEST_MAX:
            self._latest.clear()
        self._latest[asked] = answer
        changed = False
        for claim in answer.claims:
            if claim.name:
                if len(self._names) >= LATEST_MAX and claim.place not in self._names:
                    there = set(self.primaries())
                    self._names = {
                        place: name for place, name in self._names.items() if place in there
                    }
                self._names[claim.place] = claim.name
            for slot in range(claim.first, claim.last + 1):
                if claim.epoch >= self._epochs[slot]:
                    self._epochs[slot] = claim.epoch
                    if self._owners[slot] != claim.place:
                        self._own(slot, claim.place)
                        changed = True
        return changed

    def moved(self, slot: int, place: str) -> bool:
        """
        Note a server's answer MOVED; return whether it is new.

        Until :meth:`settle`, only a greater epoch says otherwise: most servers do not know of it
        yet.
        """
        if self._owners[slot] == place:
            return False
        self._own(slot, place)
        self._epochs[slot] = int(self._epochs[slot]) + 0.5
        self._redirected.add(slot)
        return True

    def settle(self) -> None:
        """
        Let the servers' answers count again, a while after a redirection.

        They did not, because they may have been of a server that was behind.
        """
        for slot in self._redirected:
            self._epochs[slot] = int(self._epochs[slot])
        self._redirected.clear()
        self._latest.clear()


def whom_to_ask(places: Sequence[str], known: Sequence[str], most: int) -> list[str]:
    """
    Choose the servers to ask: all ``places``, and as many others ``known`` as fit into ``most``.
    """
    asked = list(dict.fromkeys(places))
    asked += [place for place in dict.fromkeys(known) if place not in asked][
        : max(0, most - len(asked))
    ]
    return asked
