"""
Decides what Raft replicates, and what a view of it means for a node.

Plain decisions, without socket, thread or clock.

Nothing here is a permission. A node may believe that it leads while another does; what must not
happen twice is judged in one script at the store, by the epoch that :meth:`Committed.claimed`
grants.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidewarden.config.addresses import joined, parse_address
from tidewarden.config.load import NAME, NAME_ALLOWED, Config
from tidewarden.errors import BadArg, ConfigError

from .membership import ANOTHER_FOLDER, NOT_THERE, Members
from .store_facts import StoreFacts, majority_of

Role = Literal["leader", "follower", "candidate", "orphan", "worker"]
State = Literal["leader", "follower", "candidate"]

RAFT_OFFSET = 2
"""The Raft port is this far from a node's base port."""
EPOCH_MAX = 2**52
"""Epochs stay below this, so that a script's numbers (doubles) hold them exactly."""


@dataclass(frozen=True, slots=True)
class Times:
    """Holds Raft's times, all in seconds and all scaled by ``config.raft.pace``."""

    tick_s: float = 0.02
    """
    Longest wait of one tick for its sockets, while anything is under way but heartbeats; otherwise
    it waits until something is due.
    """
    heartbeat_s: float = 0.1
    """
    Between two messages of a leader. More than three fit into ``election_min_s``, as PySyncObj
    demands.
    """
    election_min_s: float = 0.5
    """A follower that heard no leader stands for election after a random time between this …"""
    election_max_s: float = 1.0
    """… and this."""
    fallback_s: float = 0.5
    """
    A leader that a majority did not answer for so long is none any more. Not above
    ``election_min_s``.
    """
    retry_s: float = 0.3
    """Between two attempts to reach a peer."""
    link_s: float = 1.0
    """
    A link on which nothing came for so long is dead; members say something four times as often.
    """
    claim_s: float = 1.0
    """Longest wait for a proposal's commit."""
    orphan_s: float = 2.0
    """A node that heard no leader for so long, two election times, is an orphan."""
    turn_s: float = 0.05
    """
    Between two members that ask for votes when their leader's process has ended: a round trip, the
    disk, and what a busy host adds.
    """
    wedge_s: float = 1.0
    """An event loop that did not turn for so long cannot do a leader's work."""
    stranger_s: float = 5.0
    """A connection that has not proved by then that it is a member's is closed."""
    acks_s: float = 0.003
    """
    So long a leader at rest waits behind its heartbeats before it looks at answers: they come
    together then, and the thread wakes once for all.
    """
    behind_s: float = 0.001
    """So long after what is due a tick begins."""

    @classmethod
    def at(cls, pace: float) -> Times:
        """Return the times at ``pace``; those of a tick never grow, for short ones cost little."""
        usual = cls()
        scaled = {name: getattr(usual, name) * pace for name in cls.__slots__}
        ticks = ("tick_s", "acks_s", "behind_s")
        return cls(**scaled | {name: min(scaled[name], getattr(usual, name)) for name in ticks})


@dataclass(frozen=True, slots=True)
class Committed:
    """Holds what the members have agreed on: few and slow facts."""

    epoch: int = 0
    """Number of the newest leadership that was granted; 0: none yet. Only grows."""
    holder: str = ""
    """Who it was granted to: ``<node>.<boot>``."""

    def claimed(self, node: object, boot: object, seen: object) -> Committed:
        """
        Return the committed facts after ``claim(node, boot, seen)``.

        Their epoch is above both ours and ``seen``, the store's.

        Runs on every member, and again at each replay of the journal: it depends on nothing but its
        arguments and never raises. Arguments that make no claim change nothing.
        """
        if not (isinstance(node, str) and isinstance(boot, int) and isinstance(seen, int)):
            return self
        epoch = max(self.epoch, seen) + 1
        return Committed(epoch, f"{node}.{boot}") if 0 < epoch < EPOCH_MAX else self


@dataclass(frozen=True, slots=True)
class RaftView:
    """Holds what the tick thread saw at the end of a tick. Times are monotonic seconds."""

    state: State
    """What PySyncObj calls itself."""
    term: int
    leader: str | None
    """Name of the member it last believed to lead."""
    settled: bool
    """It leads, and an entry of its own term is committed and applied here."""
    commit: int
    """Index of the last committed entry it knows of."""
    facts: Committed
    ticked: float
    """When the last tick that did not fail was over."""
    leader_heard: float
    """When a leader was last heard; now, on a leader; the start of the process, before any."""
    led_since: float = -math.inf
    """Since when it leads, if it does."""
    heard: Mapping[str, float] = field(default_factory=dict)
    """When anything last came from each member."""
    members: Members | None = None
    """The newest version of the members in its log; None: it has none yet."""
    members_committed: bool = True
    """Whether that version is committed."""
    removed_because: str = ""
    """Why this node is no member any more, or not yet; "": it is one, or was not told."""
    told_version: int = 0
    """The members' version by which it was told so."""
    refusal: str = ""
    """Why the leader did not do what it was last asked for here."""
    stores: StoreFacts = field(default_factory=StoreFacts)
    """The facts about the embedded stores, as applied here."""
    reports: int = 0
    """How often another member said something new of its store."""
    apart: Mapping[str, float] = field(default_factory=dict)
    """When members were last heard that belong to another cluster of the same name, by name."""
    seat_waits: str = ""
    """On the leader: who has joined and gets no vote yet, and why; empty: nobody."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """Describes a member as another knows it."""

    address: str
    """``host:port`` for Raft."""
    votes: bool
    """Whether it counts for a majority; one that joins does so once it has everything."""
    met: bool
    """Whether it was ever heard with the folder that it has."""


def role(view: RaftView, now: float, times: Times) -> Role:
    """Return the node's role at ``now``. A leader whose thread has stopped ticking is none."""
    if view.state == "leader" and now - view.ticked <= times.fallback_s:
        return "leader"
    if now - view.leader_heard > times.orphan_s:
        return "orphan"
    return "candidate" if view.state == "candidate" else "follower"


def leader(view: RaftView, now: float, times: Times, own: str) -> str | None:
    """Return the leader as far as node ``own`` can know at ``now``; ``None``: it knows of none."""
    here = role(view, now, times)
    if here == "leader":
        return own
    return view.leader if here == "follower" and view.leader != own else None


def quorum(view: RaftView, now: float, times: Times, own: str) -> bool:
    """
    Return whether a majority stands behind the leader here.

    It does while this node leads, or has heard the leader within one election time.
    """
    named = leader(view, now, times, own)
    return named == own or (named is not None and now - view.leader_heard <= times.election_max_s)


def peer_heard_s(view: RaftView, now: float, name: str) -> float:
    """
    Return the seconds since the member ``name`` was last heard.

    They are counted from the start of this node's leadership at most.

    Followers do not talk to each other, so the answer is of use on the leader. It is infinite for a
    node that is no peer, or that was never heard by a node that does not lead.
    """
    last = view.heard.get(name)
    if last is None:
        return math.inf
    return now - (max(last, view.led_since) if view.state == "leader" else last)


def ended_members(
    own: str,
    found: Collection[str],
    said: Mapping[str, Collection[str]],
    linked: Collection[str],
    voters: Collection[str],
) -> frozenset[str]:
    """
    Return the members whose processes have ended, as far as the member ``own`` can know.

    A member *found* that another has ended when their link had ended, that one's port refused to be
    connected to, and nothing was heard of it since. A process that died leaves this behind; one
    that is stopped, slow or cut off does not. But a firewall between two hosts may, so a majority
    of the voters must have found it, and every voter that this member is linked to.

    Args:
        own: this member's name.
        found: whom this member found to have ended.
        said: whom each other member said that it found, by name.
        linked: the other members to which there is a link.
        voters: those who vote.
    """
    gone = set()
    for name in found:
        witnesses = ({own, *linked} & set(voters)) - {name}
        agree = {one for one in witnesses if one == own or name in said.get(one, ())}
        if agree == witnesses and len(agree) >= majority_of(voters):
            gone.add(name)
    return frozenset(gone)


def turn_to_ask(own: str, voters: Collection[str], gone: Collection[str]) -> int:
    """
    Return how many others ask for votes before this member, after their leader has ended.

    All notice it at once, and two who stand at once have half of the votes each.
    """
    return sorted({*voters, own} - set(gone)).index(own)


def seeds_differ_because(members: Members, seeds: Mapping[str, str]) -> str:
    """Say how the configuration's members differ from the cluster's; empty: they do not."""
    committed = members.addresses()
    if committed == seeds:
        return ""
    found = f"the members are {_shown(committed)} (version {members.version}), as committed"
    return f"{found}; cluster.members names {_shown(seeds)}, which counts at a first start only"


def _shown(addresses: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} at {base_address(address)}" for name, address in sorted(addresses.items())
    )


def not_member_because(view: RaftView, config: Config) -> str:
    """Say why the node is no member any more, or not yet; empty: it is one, or was not told."""
    name = config.node.name
    if view.members is None:
        way = f"tidewarden cluster join {name} HOST:{config.node.base_port}"
        return (
            f"waits to be let in: {way}, asked of a member" if config.node.role == "joining" else ""
        )
    if view.removed_because == ANOTHER_FOLDER:
        return "no member any more: another folder has its name"
    if view.removed_because == NOT_THERE or name not in view.members.seats:
        return "no member of the cluster any more"
    return ""


def apart_because(view: RaftView, now: float, times: Times) -> str:
    """Say that members belong to another cluster; empty: none was heard lately that does."""
    names = sorted(name for name, at in view.apart.items() if now - at <= 2 * times.orphan_s)
    if not names:
        return ""
    return (
        f"{' and '.join(names)}: who answers under that name belongs to another cluster, which was"
        " founded apart from this one: the folders of some were lost, and made anew while the"
        " others were away. Nothing is exchanged with them. Choose whose data are kept:"
        ' docs/replication.md, "Two clusters of the same names"'
    )


def quorum_fault(view: RaftView, now: float, unix_ms: int, times: Times, own: str) -> str:
    """
    Say which members a majority lacks; empty: one can be heard, or could until just now.

    ``unix_ms``: the time of day at ``now``.
    """
    if view.members is None or quorum(view, now, times, own) or role(view, now, times) != "orphan":
        return ""
    voters = view.members.voters
    away = {
        name: view.heard.get(name)
        for name in sorted(voters - {own})
        if now - view.heard.get(name, -math.inf) > times.orphan_s
    }
    heard, needed = len(voters) - len(away), len(voters) // 2 + 1
    if heard >= needed:
        return ""  # an election is under way
    told = (
        f"{name} was not heard since {_time_of_day(unix_ms - round((now - at) * 1000))}"
        if at is not None
        else f"{name} was not heard since this node started"
        for name, at in away.items()
    )
    more = "one" if needed - heard == 1 else f"{needed - heard}"
    return (
        f"{heard} of {len(voters)} nodes {'is' if heard == 1 else 'are'} heard"
        f" ({'; '.join(told)}), and {needed} are needed: start {more} of them, or mend the links"
    )


def _time_of_day(unix_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(unix_ms // 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def must_not_start_because(view: RaftView, config: Config) -> str:
    """Say why a node whose folder is new must not go on; empty: it may."""
    name, node = config.node.name, config.node
    if view.members is not None or not view.removed_because:
        return ""
    way = (
        f"`tidewarden cluster join {name} HOST:{node.base_port}` asked of a member, then start it"
        " with --join"
    )
    if view.removed_because == ANOTHER_FOLDER:
        found = (
            f"found {node.data_dir!r}, which is new, while the members know {name} by another"
            " folder"
        )
        allowed = (
            "allowed: that folder, for its votes are in it; without it `tidewarden cluster leave"
            f" {name}`, {way}; where a majority of the members lost theirs: docs/replication.md,"
            ' "Raft\'s folders of a majority are lost"'
        )
        return f"node.data_dir: {found}; {allowed}"
    if node.role == "joining":
        return ""
    return (
        f"node.name: found {name!r}, which is no member of the cluster that cluster.members names;"
        f" allowed: {way}"
    )


def raft_address(name: str, address: str) -> str:
    """
    Return the Raft address of a node that is reached at ``host:base_port``.

    Raises: BadArg: the name or the address is none.
    """
    if not re.fullmatch(NAME, name):
        raise BadArg(f"A node's name: found {name[:80]!r}; allowed: {NAME_ALLOWED}.")
    parsed = parse_address(address)
    if parsed is None:
        raise BadArg(
            f"A node's address: found {address[:80]!r}; allowed: 'host:base_port', the port from 1"
            " to 65,531."
        )
    return f"{parsed[0]}:{parsed[1] + RAFT_OFFSET}"


def base_address(address: str) -> str:
    """Return ``host:base_port`` of the member that Raft reaches at ``address``."""
    host, _, port = address.rpartition(":")
    return joined(host, int(port) - RAFT_OFFSET)


def base_addresses(seats: Mapping[str, MemberView]) -> dict[str, str]:
    """Return every member's ``host:base_port`` by name."""
    return {name: base_address(seat.address) for name, seat in seats.items()}


def addresses(own: str, host: str, raft_port: int, members: Mapping[str, str]) -> dict[str, str]:
    """
    Return the Raft address ``host:port`` of every member by name, this node's among them.

    Args: ``own``: this node's name; ``host``, ``raft_port``: where it listens, its address when it
    is alone; ``members``: ``cluster.members``, name → ``host:base_port``. Raises: ConfigError: a
    member without host or port, two of one address, or this node missing among its members.
    """
    if not members:
        return {own: f"{host}:{raft_port}"}
    problems = []
    found: dict[str, str] = {}
    for name, text in members.items():
        parsed = parse_address(text)
        if parsed is None:
            problems.append(f"cluster.members.{name}: found {text!r}; allowed: 'host:base_port'")
            continue
        found[name] = f"{parsed[0]}:{parsed[1] + RAFT_OFFSET}"
        twin = next(
            (other for other in found if other != name and found[other] == found[name]), None
        )
        if twin is not None:
            problems.append(
                f"cluster.members.{name}: found {text!r}, as for {twin}; allowed: an address of"
                " its own"
            )
    if own not in members:
        known = ", ".join(sorted(members))
        problems.append(
            f"node.name: found {own!r}, which is not among cluster.members; allowed: one of {known}"
        )
    if problems:
        raise ConfigError(problems)
    return found
