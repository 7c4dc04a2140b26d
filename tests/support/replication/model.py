"""
A small explicit-state model of replicated embedded stores, over the product's own decisions.

What is modelled: Raft as one log whose entries each node learns late; commands that arrive late, in
any order, or never; stores that crash, restart whole, on another boot, without their tail or their
disk, or die for good; replication entry by entry; full syncs that take time, and get to the disk
late; flights (calls, mark, set, acknowledgements) with any delay between; processes that restart
beside their store; members that join and leave. A lost message or a cut link needs no step of its
own: a step that is never taken is one. A log is a tuple of writes (positive) and views (-view).

The facts and commands are ``StoreFacts``'; what the data say is ``written_set``; who fits, founds
and recovers is ``election``'s. Times are left out: whatever may happen at some time, may now.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidewarden.cluster.replication.election import Election, incarnation_in_set
from tidewarden.cluster.replication.set_keeper import EMPTY, without, written_set
from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.raft.store_facts import (
    StoreFacts,
    StoreMember,
    applied,
    majority_of,
    read_set,
    set_text,
)

Members = frozenset[StoreMember]
NOBODY: Members = frozenset()


@dataclass(frozen=True)
class Rules:
    """The protocol; each rule that is switched off is a known-bad variant."""

    incarnations: bool = True
    """Acknowledgements and elections name a store's start, not only its node."""
    add_first: bool = True
    """The data name a new member, who acknowledges that, before it is proposed."""
    drop_late: bool = True
    """A removal has no effect on answers before it is known to be committed."""
    only_members: bool = True
    """A count of replicas is not believed: members' acknowledgements are."""
    elect_members: bool = True
    keep_set: bool = True
    """An election keeps the set, less the former primary, instead of resetting it."""
    floor: bool = True
    """The set never shrinks below a majority."""
    empty_below: bool = True
    """Below a majority, nothing is confirmed."""
    set_in_data: bool = True
    """Flights read the set at the primary, not from their node's copy of the facts."""
    set_behind: bool = True
    """They read it behind their calls: no set that was read before is believed."""
    place_behind: bool = True
    """The place that has to be acknowledged is behind the calls."""
    same_view: bool = True
    """What a flight finds counts only while its server is what it was when the calls ran."""
    no_giving_up: bool = True
    """A proposal whose fate is unknown stays pending until a later version is known."""
    compare_view: bool = True
    """Changes of the set name the view."""
    lossy_is_other: bool = True
    """A start that may have lost something continues nothing."""
    whole_loads: bool = True
    """A full sync keeps the old data until the new are whole; nobody is promoted meanwhile."""
    no_older: bool = True
    """A store follows nobody whose view is below that of its own data."""
    note: bool = True
    """A start that finds the note of a sync under way continues nothing."""
    inherit: bool = True
    """A new process of the primary's node reckons with proposals of the one before."""
    stamps: bool = True
    """What a connection that was given up still sends is refused when it comes late."""
    found_all: bool = True
    """The first primary is chosen when all have said what they have."""
    seen: bool = True
    """A new view is above all in data."""
    members_rule: bool = True
    """The voting members change only while a majority of the new ones has a whole copy."""
    recover_all: bool = True
    """The last resort waits for all members, or says that something is likely lost."""
    empty_unheard: bool = True
    """Of a member that came back empty it is not known what it had."""
    forgetful: bool = False
    """No rule but a fault: a restarted node may know less of Raft than it did."""
    always: bool = False
    """No rule but a setting: what a store acknowledged is on its disk."""


class Limits(NamedTuple):
    """How much may happen in one history."""

    writes: int = 1
    views: int = 2
    versions: int = 2
    crashes: int = 0
    lossy: int = 0
    """Starts without a tail, or on an empty disk."""
    deaths: int = 0
    starts: int = 3
    groups: int = 1
    boots: int = 0
    """Starts on another boot of the host, with a whole log."""
    processes: int = 0
    """Restarts of a node's process beside its store."""
    changes: int = 0
    """Of the members that vote."""
    resorts: bool = False
    """The leader may found and recover, by what the nodes reported."""
    forgets: int = 0
    """Losses of Raft's folders at all nodes at once."""
    late: int = 0
    """Commands of connections that were given up, which come late."""
    single: int = 0
    """Writes that one store alone had answered before it was one of several."""
    durable: bool = True
    """Whether somebody must be electable without the last resort while a minority has failed."""


class Store(NamedTuple):
    up: bool = True
    start: int = 1
    continues: frozenset[int] = frozenset({1})
    """The starts whose every acknowledged write these data have, this one included."""
    log: tuple[int, ...] = ()
    disk: tuple[int, ...] | None = None
    """What another start would find, while that is not yet the log."""
    mode: tuple[Any, ...] = ()
    """() nobody's, ("R", node, start, view) or ("P", view)."""
    loading: tuple[int, ...] | None = None
    acks: tuple[tuple[StoreMember, int], ...] = ()
    """Of a primary."""
    says: str = EMPTY
    """Of a primary: the set in its data."""
    stamp: int = 0
    change: tuple[Any, ...] = ()
    """() or ("join", set, version, who, length), ("propose", set, version), ("found", text, v)."""
    partial: bool = True
    """Whether it may go on from where it was."""
    noted: bool = False
    """Of a store that is down: it ended in a sync, and says so."""
    dead: bool = False
    lost: bool = False
    """It lost something, and was not taken into the set since."""


class Raft(NamedTuple):
    facts: StoreFacts
    voters: frozenset[str]


class State(NamedTuple):
    log: tuple[Raft, ...]
    know: tuple[int, ...]
    under_way: frozenset[tuple[Any, ...]]
    stores: tuple[Store, ...]
    groups: frozenset[tuple[Any, ...]]
    oked: frozenset[int] = frozenset()
    reports: tuple[StoreReport | None, ...] = ()
    late: frozenset[tuple[Any, ...]] = frozenset()
    """Writes of the set that still fly: (node, start, view, stamp, text)."""
    written: int = 0
    used: tuple[tuple[str, int], ...] = ()
    """How often each limited thing has happened."""


Step = tuple[str, State]


def name(node: int) -> str:
    return f"n{node}"


def number(node: str) -> int:
    return int(node[1:])


@functools.cache
def member(node: int, start: int) -> StoreMember:
    return StoreMember(name(node), str(start))


@functools.lru_cache(maxsize=100_000)
def says(facts: StoreFacts, voters: frozenset[str], proposed: Members, found: str | None) -> str:
    return written_set(facts, voters, proposed, found)


members_of = functools.lru_cache(maxsize=100_000)(read_set)


def view_of(log: tuple[int, ...]) -> int:
    return max((-entry for entry in log if entry < 0), default=0)


def seq_of(log: tuple[int, ...]) -> int:
    """How many writes stand behind the last view."""
    seq = 0
    for entry in reversed(log):
        if entry < 0:
            break
        seq += 1
    return seq


def acked(store: Store, who: StoreMember, length: int) -> Store:
    acks = dict(store.acks)
    acks[who] = length
    return store._replace(acks=tuple(sorted(acks.items())))


def put(stores: tuple[Store, ...], node: int, store: Store) -> tuple[Store, ...]:
    return (*stores[:node], store, *stores[node + 1 :])


def report_of(store: Store, always: bool) -> StoreReport:
    return StoreReport(
        str(store.start),
        tuple(str(start) for start in sorted(store.continues - {store.start})),
        store.loading is not None,
        view_of(store.log),
        seq_of(store.log),
        "word" if store.log else "",
        len(store.log),
        fsync="always" if always else "everysec",
    )


def begun(nodes: int, members: int, voters: int | None = None) -> State:
    """A cluster in view 1, whose first ``members`` stores are in the set."""
    kept = frozenset(member(node, 1) for node in range(members))
    voting = frozenset(name(node) for node in range(voters or nodes))
    facts = StoreFacts(1, name(0), "1", kept, 1)
    stores = [Store(log=(-1,), mode=("R", 0, 1, 1)) for _ in range(nodes)]
    acks = tuple((member(node, 1), 1) for node in range(1, nodes))
    text = says(facts, voting, NOBODY, None)
    stores[0] = Store(log=(-1,), mode=("P", 1), acks=acks, says=text, stamp=1)
    return State(
        (Raft(facts, voting),), (0,) * nodes, frozenset(), tuple(stores), frozenset(),
        reports=(None,) * nodes,
    )  # fmt: skip


def unfounded(nodes: int, full: int | None) -> State:
    """A cluster without facts; ``full``: the node whose single store has data with an answer."""
    stores = [Store(partial=False) for _ in range(nodes)]
    oked: frozenset[int] = frozenset()
    if full is not None:
        stores[full] = Store(log=(-1, 1), partial=False)
        oked = frozenset({1})
    voting = frozenset(name(node) for node in range(nodes))
    return State(
        (Raft(StoreFacts(), voting),), (0,) * nodes, frozenset(), tuple(stores), frozenset(), oked,
        reports=tuple(report_of(one, always=False) for one in stores), written=len(oked),
    )  # fmt: skip


@dataclass
class Model:
    """Says what may happen next, and what must not be."""

    rules: Rules
    limits: Limits

    def steps(self, state: State) -> Iterator[Step]:
        yield from self.commits(state)
        yield from self.leader(state)
        for node, store in enumerate(state.stores):
            if store.dead:
                continue
            yield from self.learns(state, node, store)
            if not store.up:
                yield from self.restarts(state, node, store)
                continue
            yield from self.ends(state, node, store)
            yield from self.stands(state, node, store)
            yield from self.promotion(state, node, store)
            yield from self.follows(state, node, store)
            yield from self.receives(state, node, store)
            if store.mode and store.mode[0] == "P":
                yield from self.writes(state, node, store)
                yield from self.keeps(state, node, store)
        yield from self.answers(state)

    # Helpers.

    def used(self, state: State, what: str) -> State | None:
        """The state in which ``what`` happened once more; None: it happened often enough."""
        used = dict(state.used)
        used[what] = used.get(what, 0) + 1
        if used[what] > getattr(self.limits, what):
            return None
        return state._replace(used=tuple(sorted(used.items())))

    def text(self, facts: StoreFacts, voters: frozenset[str], change: tuple[Any, ...]) -> str:
        found = change[1] if change and change[0] == "found" else None
        proposed = change[1] if change and change[0] != "found" else NOBODY
        if not self.rules.add_first:
            proposed = NOBODY
        if not self.rules.empty_below and not facts.is_open(voters):
            return set_text(facts.in_sync | proposed)
        return says(facts, voters, proposed, found)

    # Raft.

    def commits(self, state: State) -> Iterator[Step]:
        top = state.log[-1]
        for command in state.under_way:
            rest = state._replace(under_way=state.under_way - {command})
            after = self.effect(top, command)
            if after is top.facts:
                yield f"refused {command}", rest
                continue
            stores = tuple(
                store._replace(lost=False)
                if store.lost and any(member(at, s) in after.in_sync for s in store.continues)
                else store
                for at, store in enumerate(state.stores)
            )
            oked = state.oked
            # Said: what is missing is no promise more. A tail may be that nobody has asked for; of
            # what a whole store had, an operator says so.
            emptied = any(not state.stores[number(one.node)].log for one in top.facts.in_sync)
            if after.loss == "likely" or (after.loss and command[0] == "recover" and not emptied):
                oked &= set(state.stores[number(after.primary)].log)
            raft = (*state.log, Raft(after, top.voters))
            yield f"commit {command}", rest._replace(log=raft, stores=stores, oked=oked)

    def effect(self, top: Raft, command: tuple[Any, ...]) -> StoreFacts:
        rules, facts, lim = self.rules, top.facts, self.limits
        if command[0] == "change":
            _, view, version, text = command
            if not rules.compare_view and version <= facts.version:
                command = ("change", facts.view, facts.version, text)
            if facts.version >= lim.versions:
                return facts
            after = applied(facts, top.voters, command)
            if (
                after is facts
                and not rules.floor
                and (view, version) == (facts.view, facts.version)
            ):
                return replace(facts, in_sync=read_set(text), version=version + 1)
            if after is facts and not rules.compare_view and version <= facts.version:
                return replace(facts, in_sync=read_set(text), version=facts.version + 1)
            return after
        if facts.view >= lim.views:
            return facts
        after = applied(facts, top.voters, command)
        if command[0] != "elect":
            return after
        _, view, node, _, start, drop, _ = command
        if after is facts and view == facts.view:
            named = {one for one in facts.in_sync if one.node == node}
            if not rules.elect_members or (not rules.incarnations and named):
                kept = facts.in_sync - named | {StoreMember(node, start)}
                after = StoreFacts(view + 1, node, start, kept, facts.version + 1)
        if after is not facts and not rules.keep_set:
            after = replace(after, in_sync=frozenset({after.primary_member}))
        if after is not facts and not rules.floor and drop != node:
            kept = frozenset(one for one in after.in_sync if one.node != drop)
            after = replace(after, in_sync=kept)
        return after

    def leader(self, state: State) -> Iterator[Step]:
        top = state.log[-1]
        yield from self.change_members(state, top)
        if self.limits.forgets:
            yield from self.forgets(state)
        if not self.limits.resorts:
            return
        for node, store in enumerate(state.stores):
            if store.up and not store.dead:
                report = report_of(store, self.rules.always)
                if state.reports[node] != report:
                    reports = (*state.reports[:node], report, *state.reports[node + 1 :])
                    yield f"{node} reports", state._replace(reports=reports)
        if top.facts.view >= self.limits.views:
            return
        known = {name(at): one for at, one in enumerate(state.reports) if one is not None}
        if not self.rules.empty_unheard:
            known = {
                node: replace(one, view=one.view or 1, founding="word")
                for node, one in known.items()
            }
        for command in self.asks(top, known):
            if command not in state.under_way:
                under_way = state.under_way | {command}
                yield f"leader proposes {command}", state._replace(under_way=under_way)

    def asks(self, top: Raft, known: dict[str, StoreReport]) -> Iterator[tuple[Any, ...]]:
        """What the product's leader proposes by these reports, and what a bad one would."""
        facts = top.facts
        if not known:
            return
        if (not facts.view and not self.rules.found_all) or not self.rules.recover_all:
            for node, report in known.items():
                if report.loading:
                    continue
                if not facts.view:
                    yield "found", node, report.incarnation, report.view  # The first that answers.
                elif not any(incarnation_in_set(facts, *pair) for pair in known.items()):
                    seen = max(one.view for one in known.values())
                    yield "recover", facts.view, facts.version, node, report.incarnation, seen, ""
            return
        command = decided(facts, top.voters, tuple(sorted(known.items())))
        if command is not None and command[0] != "elect":  # These stand by themselves, below.
            if not self.rules.seen:
                command = (*command[:-1], 0)
            yield command

    def change_members(self, state: State, top: Raft) -> Iterator[Step]:
        then = self.used(state, "changes")
        if then is None:
            return
        for node, store in enumerate(state.stores):
            leaver = name(node) if name(node) in top.voters else ""
            if store.dead and not leaver:
                continue
            voters = top.voters ^ {name(node)}
            if not voters:
                continue
            if self.rules.members_rule and top.facts.membership_fault(leaver, voters):
                continue
            yield (
                f"{name(node)} {'leaves' if leaver else 'votes'}",
                then._replace(log=(*state.log, Raft(top.facts, voters))),
            )

    def forgets(self, state: State) -> Iterator[Step]:
        then = self.used(state, "forgets")
        if then is None:
            return
        stores = tuple(
            store._replace(mode=(), acks=(), says=EMPTY, change=(), loading=None)
            if store.loading is None
            else store._replace(mode=())
            for store in state.stores
        )
        yield (
            "Raft's folders are lost",
            then._replace(
                log=(Raft(StoreFacts(), state.log[-1].voters),),
                know=(0,) * len(state.know),
                under_way=frozenset(),
                groups=frozenset(),
                reports=(None,) * len(stores),
                stores=stores,
            ),
        )

    def learns(self, state: State, node: int, store: Store) -> Iterator[Step]:
        at = state.know[node] + 1
        if at >= len(state.log):
            return
        facts, voters = state.log[at]
        new = store
        if store.mode and store.mode[0] == "P":
            if facts.view != store.mode[1] or facts.primary_member != member(node, store.start):
                new = store._replace(mode=(), acks=(), says=EMPTY, change=())
            else:
                change = store.change
                if change and facts.version > change[2]:
                    change = ()
                text = self.text(facts, voters, change)
                new = store._replace(change=change, says=text, stamp=store.stamp + 1)
                yield from self.sent_late(state, node, store, new, at)
        elif store.mode and facts.view > store.mode[3]:
            # A load that has begun cannot be stopped.
            new = store._replace(mode=())
        yield f"{node} learns {facts.view}.{facts.version}", self.knows(state, node, at, new)

    def sent_late(
        self, state: State, node: int, store: Store, new: Store, at: int
    ) -> Iterator[Step]:
        """Its write of the set is left on a connection that is given up, and made again."""
        then = self.used(state, "late")
        if then is None or not store.mode or store.says == new.says:
            return
        flying = (node, store.start, store.mode[1], new.stamp, new.says)
        again = new._replace(stamp=new.stamp + 1)
        yield (
            f"{node} writes {new.says!r} twice",
            self.knows(then, node, at, again)._replace(late=state.late | {flying}),
        )

    def knows(self, state: State, node: int, at: int, store: Store) -> State:
        know = (*state.know[:node], at, *state.know[node + 1 :])
        return state._replace(know=know, stores=put(state.stores, node, store))

    # Ends and starts.

    def ends(self, state: State, node: int, store: Store) -> Iterator[Step]:
        # The note of a sync stands from REPLICAOF until all of it is on the disk.
        noted = self.rules.note and (store.loading is not None or store.disk is not None)
        gone = store._replace(
            up=False, mode=(), loading=None, acks=(), says=EMPTY, change=(), partial=False,
            noted=noted,
        )  # fmt: skip
        then = self.used(state, "crashes")
        if then is not None and store.start < self.limits.starts:
            yield f"{node} crashes", then._replace(stores=put(state.stores, node, gone))
        then = self.used(state, "deaths")
        if then is not None:
            dead = gone._replace(dead=True, log=(), disk=None, continues=frozenset())
            yield f"{node} dies", then._replace(stores=put(state.stores, node, dead))
        then = self.used(state, "processes")
        if then is not None and store.mode and store.mode[0] == "P":
            # A new process reads the facts through Raft's quorum, and finds its store open.
            top = state.log[-1]
            if top.facts.primary_member != member(node, store.start):
                return
            change = ("found", store.says, top.facts.version) if self.rules.inherit else ()
            new = store._replace(change=change, stamp=store.stamp + 1)
            if top.facts.view == store.mode[1]:
                new = new._replace(says=self.text(top.facts, top.voters, change))
                yield (
                    f"{node}'s process restarts",
                    self.knows(then, node, len(state.log) - 1, new),
                )

    def restarts(self, state: State, node: int, store: Store) -> Iterator[Step]:
        start = store.start + 1
        log = store.log if store.disk is None else store.disk
        kept = frozenset({start}) if store.noted else store.continues | {start}
        up = store._replace(up=True, start=start, log=log, disk=None, noted=False)
        whole = up._replace(continues=kept, lost=store.lost or store.noted)
        yield f"{node} restarts whole", state._replace(stores=put(state.stores, node, whole))
        if self.rules.forgetful and state.know[node]:
            yield f"{node} restarts whole, and forgets", self.knows(state, node, 0, whole)
        other = frozenset({start}) if self.rules.lossy_is_other else store.continues | {start}
        then = self.used(state, "boots")
        if then is not None:
            booted = up._replace(continues=other, lost=True)
            yield (
                f"{node} restarts on another boot",
                then._replace(stores=put(state.stores, node, booted)),
            )
        then = self.used(state, "lossy")
        if then is not None and log:
            for cut in range(1 if self.rules.always else len(log)):
                less = up._replace(log=log[:cut], continues=other, lost=True)
                yield (
                    f"{node} restarts with {log[:cut]} of {log}",
                    then._replace(stores=put(state.stores, node, less)),
                )

    # Roles.

    def stands(self, state: State, node: int, store: Store) -> Iterator[Step]:
        """The leader proposes it; what it reported may be as old as the command is late."""
        facts, voters = state.log[state.know[node]]
        if state.log[-1].facts.view != facts.view or not 0 < facts.view < self.limits.views:
            return
        if (store.loading is not None and self.rules.whole_loads) or name(node) not in voters:
            return
        if facts.primary_member == member(node, store.start):
            return
        old = incarnation_in_set(facts, name(node), report_of(store, self.rules.always))
        if not old and not self.rules.incarnations:
            old = next((one.incarnation for one in facts.in_sync if one.node == name(node)), "")
        if not old and not self.rules.elect_members:
            old = str(store.start)
        if not old:
            return
        seen = view_of(store.log) if self.rules.seen else 0
        for drop in ("", facts.primary):
            if drop == name(node):
                continue
            command = "elect", facts.view, name(node), old, str(store.start), drop, seen
            if command not in state.under_way:
                yield (
                    f"{node}:{store.start} stands for {facts.view + 1}, drop {drop}",
                    state._replace(under_way=state.under_way | {command}),
                )

    def promotion(self, state: State, node: int, store: Store) -> Iterator[Step]:
        facts, voters = state.log[state.know[node]]
        if facts.primary_member != member(node, store.start) or (
            store.mode and store.mode[0] == "P"
        ):
            return
        if store.loading is not None and self.rules.whole_loads:
            return
        if view_of(store.log) >= facts.view:
            return  # ``open`` refuses.
        new = store._replace(
            mode=("P", facts.view),
            log=(*store.log, -facts.view),
            loading=None,
            acks=(),
            says=self.text(facts, voters, ()),
            stamp=1,
            change=(),
            partial=True,
        )
        yield (
            f"{node}:{store.start} promoted in {facts.view}",
            state._replace(stores=put(state.stores, node, new)),
        )

    def follows(self, state: State, node: int, store: Store) -> Iterator[Step]:
        facts, _ = state.log[state.know[node]]
        if not facts.view or facts.primary == name(node) or store.mode or store.loading is not None:
            return
        at, start = number(facts.primary), int(facts.incarnation)
        other = state.stores[at]
        if not other.up or other.start != start or other.mode != ("P", facts.view):
            return
        if self.rules.no_older and view_of(store.log) > facts.view:
            return
        mode = ("R", at, start, facts.view)
        if store.partial and store.log == other.log[: len(store.log)]:
            stores = put(state.stores, node, store._replace(mode=mode))
            heard = acked(other, member(node, store.start), len(store.log))
            yield f"{node} follows {at} (partial)", state._replace(stores=put(stores, at, heard))
            return
        log = store.log if self.rules.whole_loads else ()
        new = store._replace(mode=mode, loading=other.log, log=log)
        yield f"{node} follows {at} (full)", state._replace(stores=put(state.stores, node, new))

    def receives(self, state: State, node: int, store: Store) -> Iterator[Step]:
        who = member(node, store.start)
        if store.disk is not None:
            new = store._replace(disk=None)
            yield f"{node} has it on disk", state._replace(stores=put(state.stores, node, new))
        linked = None
        if store.mode and store.mode[0] == "R":
            _, at, start, view = store.mode
            other = state.stores[at]
            if other.up and other.start == start and other.mode == ("P", view):
                linked = at
        if store.loading is not None:
            # The server of today has the new data on its disk at once; others do not.
            for disk in (None, store.log):
                new = store._replace(log=store.loading, loading=None, partial=True, disk=disk)
                stores = put(state.stores, node, new)
                if linked is not None:
                    heard = acked(stores[linked], who, len(store.loading))
                    stores = put(stores, linked, heard)
                late = "" if disk is None else ", not on disk"
                yield f"{node} has loaded{late}", state._replace(stores=stores)
            return
        if linked is None:
            return
        theirs = state.stores[linked].log
        if len(store.log) < len(theirs) and store.log == theirs[: len(store.log)]:
            log = theirs[: len(store.log) + 1]
            stores = put(state.stores, node, store._replace(log=log))
            heard = acked(stores[linked], who, len(log))
            yield (
                f"{node} has {log[-1]} of {linked}",
                state._replace(stores=put(stores, linked, heard)),
            )

    # The primary.

    def writes(self, state: State, node: int, store: Store) -> Iterator[Step]:
        view = store.mode[1]
        for late in state.late:
            at, start, of, stamp, text = late
            if (at, start, of) != (node, store.start, view):
                continue
            if stamp > store.stamp or not self.rules.stamps:
                new = store._replace(says=text)
                yield (
                    f"late: {node} writes {text!r}",
                    state._replace(late=state.late - {late}, stores=put(state.stores, node, new)),
                )
        flying = sum(1 for one in state.groups if one[5])
        if state.written >= self.limits.writes or flying >= self.limits.groups:
            return
        log = (*store.log, state.written + 1)
        texts: set[str | None] = {None}
        if not self.rules.set_behind:
            early = (node, store.start, view, 0, store.says, 0)
            if early not in state.groups:
                yield (
                    f"{store.says!r} is read early at {node}",
                    state._replace(groups=state.groups | {early}),
                )
            texts = {one[4] for one in state.groups if one[5] == 0 and one[:3] == early[:3]}
        if not self.rules.set_in_data:
            texts = {
                self.text(facts, voters, ()) for facts, voters in state.log if facts.view == view
            }
        place = len(log) if self.rules.place_behind else len(store.log)
        for text in sorted(texts, key=str):
            group = (node, store.start, view, place, text, log[-1])
            said = "" if text is None else f", for {text!r}"
            yield (
                f"write {log[-1]} at {node} in {view}{said}",
                state._replace(
                    stores=put(state.stores, node, store._replace(log=log)),
                    groups=state.groups | {group},
                    written=log[-1],
                ),
            )

    def keeps(self, state: State, node: int, store: Store) -> Iterator[Step]:
        facts, voters = state.log[state.know[node]]
        own = member(node, store.start)
        if facts.view != store.mode[1] or facts.primary_member != own:
            return
        change = store.change
        if change and change[0] == "propose":
            yield from self.goes_on(state, node, store, facts, voters)
        elif change and change[0] == "join":
            yield from self.joins(state, node, store, facts, voters)
        elif change:  # Found: the set as it is, committed anew, makes older proposals impossible.
            yield from self.proposes(state, node, store, facts.in_sync, change)
        elif state.log[-1].facts.version < self.limits.versions:
            yield from self.extends(state, node, store, facts, voters)
            for out in sorted(facts.in_sync - {own}):
                rest = without(facts.in_sync, [out], voters)
                if not self.rules.floor:
                    rest = facts.in_sync - {out}
                if rest != facts.in_sync:
                    new = store if self.rules.drop_late else store._replace(says=set_text(rest))
                    yield from self.proposes(
                        state, node, new, rest, ("propose", rest, facts.version)
                    )

    def extends(
        self, state: State, node: int, store: Store, facts: StoreFacts, voters: frozenset[str]
    ) -> Iterator[Step]:
        for who, _ in store.acks:
            if who in facts.in_sync or who.node == name(node):
                continue
            kept = frozenset(one for one in facts.in_sync if one.node != who.node) | {who}
            options = {kept}
            for out in kept - {who, member(node, store.start)}:
                options.add(without(kept, [out], voters) if self.rules.floor else kept - {out})
            for grown in sorted(options, key=sorted):
                change = ("join", grown, facts.version, who, len(store.log))
                new = store._replace(change=change, stamp=store.stamp + 1)
                new = new._replace(says=self.text(facts, voters, change))
                yield (
                    f"{node} wants {set_text(grown)}",
                    state._replace(stores=put(state.stores, node, new)),
                )

    def joins(
        self, state: State, node: int, store: Store, facts: StoreFacts, voters: frozenset[str]
    ) -> Iterator[Step]:
        _, grown, version, who, length = store.change
        if dict(store.acks).get(who, 0) >= length or not self.rules.add_first:
            yield from self.proposes(state, node, store, grown, ("propose", grown, version))
        new = store._replace(change=(), says=self.text(facts, voters, ()), stamp=store.stamp + 1)
        yield f"{node} takes {who} back", state._replace(stores=put(state.stores, node, new))

    def proposes(
        self, state: State, node: int, store: Store, members: Members, change: tuple[Any, ...]
    ) -> Iterator[Step]:
        command = "change", store.mode[1], change[2], set_text(members)
        if command in state.under_way and store.change == change:
            return
        yield (
            f"{node} proposes {set_text(members)}",
            state._replace(
                stores=put(state.stores, node, store._replace(change=change)),
                under_way=state.under_way | {command},
            ),
        )

    def goes_on(
        self, state: State, node: int, store: Store, facts: StoreFacts, voters: frozenset[str]
    ) -> Iterator[Step]:
        """A proposal stays: it is made again, or made impossible by the set as it is."""
        if self.limits.changes:
            yield from self.proposes(state, node, store, facts.in_sync, store.change)
        if not self.rules.no_giving_up:
            new = store._replace(change=(), says=self.text(facts, voters, ()))
            yield f"{node} gives up", state._replace(stores=put(state.stores, node, new))

    # Answers.

    def answers(self, state: State) -> Iterator[Step]:
        for group in state.groups:
            node, *_, length, text, write = group
            store = state.stores[node]
            rest = state._replace(groups=state.groups - {group})
            if not write:
                continue
            if not stands(group, store, self.rules):
                yield f"{write} is NOQUORUM", rest
            elif store.mode[:1] != ("P",):
                continue
            elif self.confirmed(state, node, store, length, store.says if text is None else text):
                yield f"OK {write}", rest._replace(oked=state.oked | {write})

    def confirmed(self, state: State, node: int, store: Store, length: int, text: str) -> bool:
        acks, own = dict(store.acks), member(node, store.start)
        if not self.rules.only_members:
            enough = majority_of(state.log[-1].voters)
            return sum(length <= place for place in acks.values()) + 1 >= enough
        members = members_of(text)
        if own not in members:
            return False
        if self.rules.incarnations:
            return all(one == own or acks.get(one, 0) >= length for one in members)
        reached = {who.node for who, place in acks.items() if place >= length}
        return all(one.node in reached | {own.node} for one in members)

    # What must not be.

    def tidied(self, state: State) -> State:
        """Leave out what can have no effect any more."""
        rules, top = self.rules, state.log[-1].facts
        under_way, groups = state.under_way, state.groups
        if rules.compare_view and under_way:
            under_way = frozenset(one for one in under_way if live(one, top))
        if groups:
            stores = state.stores
            groups = frozenset(one for one in groups if stands(one, stores[one[0]], rules))
        alive = [at for at, one in zip(state.know, state.stores, strict=True) if not one.dead]
        least = min(alive, default=0)
        log, know = state.log, state.know
        if not rules.forgetful and rules.set_in_data:
            know = tuple(
                0 if one.dead else at - least for at, one in zip(know, state.stores, strict=True)
            )
            log = log[least:]
        return state._replace(under_way=under_way, groups=groups, log=log, know=know)

    def broken(self, state: State) -> str:
        """Say what is lost: the primary of the current view serves without an answered write."""
        facts = state.log[-1].facts
        if not facts.view:
            return ""
        store = state.stores[number(facts.primary)]
        serves = store.up and str(store.start) == facts.incarnation
        if serves and store.mode == ("P", facts.view) and not state.oked <= set(store.log):
            return f"SAFE: view {facts.view} serves without {sorted(state.oked - set(store.log))}"
        return ""

    def weak(self, state: State) -> str:
        """Say which member lacks something, or that nobody may be elected."""
        facts, voters = state.log[-1]
        if not facts.view:
            return ""
        fit = False
        failed = {
            name(at)
            for at, one in enumerate(state.stores)
            if name(at) in voters and (one.dead or one.lost)
        }
        for one in facts.in_sync:
            store = state.stores[number(one.node)]
            if store.dead or int(one.incarnation) not in store.continues:
                continue
            if store.up and not state.oked <= set(store.log):
                return f"MEMBERS: {one} lacks {sorted(state.oked - set(store.log))}"
            fit = fit or (one.node in voters and one.node not in failed)
        minority = len(failed) <= (len(voters) - 1) // 2
        promised = any(write > self.limits.single for write in state.oked)
        if self.limits.durable and promised and minority and not fit:
            return f"DURABLE: nobody may be elected, though only {sorted(failed)} failed"
        return ""


def stands(group: tuple[Any, ...], store: Store, rules: Rules) -> bool:
    """Whether a flight's server is what it was when the calls ran, as far as it is asked."""
    if not store.up or store.start != group[1]:
        return False
    return store.mode == ("P", group[2]) or not rules.same_view


def live(command: tuple[Any, ...], top: StoreFacts) -> bool:
    if command[0] == "found":
        return top.view == 0
    if command[0] == "elect":
        return bool(command[1] == top.view)
    return command[1:3] == (top.view, top.version)


@functools.lru_cache(maxsize=200_000)
def decided(
    facts: StoreFacts, voters: frozenset[str], known: tuple[tuple[str, StoreReport], ...]
) -> tuple[Any, ...] | None:
    """What the product's leader proposes; nodes without a report are silent."""
    election = Election(0.0)
    choice = election.decide(facts, voters, dict(known), dict.fromkeys(dict(known), 0.0), 100.0)
    if choice.command is None and choice.why == "":  # Its short waits are over.
        choice = election.decide(facts, voters, dict(known), dict.fromkeys(dict(known), 0.0), 200.0)
    return choice.command
