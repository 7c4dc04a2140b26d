"""
Decides which store takes over, on the node that leads Raft.

Pure: no socket, no clock; it is given the time. It returns a command of
:mod:`tidewarden.raft.store_facts`, whose own conditions keep it safe: a store that fits has every
acknowledged write, so the order here only saves time, and data on hosts whose disks stalled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.raft.store_facts import StoreFacts, StoreMember, majority_of


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """Holds the times of an election, all in seconds and all scaled by ``raft.pace``."""

    dead_s: float = 0.7
    """A node that was not heard for so long is given up."""
    settle_s: float = 0.1
    """
    Followers have so long to report how far they came, if the primary gives up by itself or its
    node's process has ended.
    """
    continuation_s: float = 1.0
    """A store that restarted waits so long for one that did not."""
    again_s: float = 0.25
    """A command without effect is proposed again after this."""

    @classmethod
    def at(cls, pace: float) -> ElectionTimes:
        """Return the times at ``pace``."""
        return cls(**{one.name: getattr(cls(), one.name) * pace for one in fields(cls)})


class Choice(NamedTuple):
    """Says what to propose, or why nothing can be done."""

    command: tuple[Any, ...] | None = None
    """The command for ``RaftMember.store_command``; None: nothing is to be proposed."""
    why: str = ""
    """
    One sentence for operators: why the command is proposed, or, without a command, why no store can
    take over. Empty: all is well, or a command is under way.
    """


@dataclass(frozen=True, slots=True)
class Stores:
    """Holds what the Raft leader knows of the stores at one moment."""

    facts: StoreFacts
    voters: frozenset[str]
    reports: Mapping[str, StoreReport]
    """The reports by node, of the nodes that are heard."""

    def ready(self, node: str) -> StoreReport | None:
        """Return the report of a node whose store runs and can take a role."""
        report = self.reports.get(node)
        return report if report is not None and report.incarnation and not report.loading else None


class Candidate(NamedTuple):
    """Names a store that has every acknowledged write."""

    node: str
    old: str
    """The candidate's incarnation in the set, earlier than the report's if it restarted whole."""
    report: StoreReport

    @property
    def restarted(self) -> bool:
        """Return whether the store continues the member after a restart, instead of being it."""
        return self.old != self.report.incarnation

    @property
    def rank(self) -> tuple[bool, bool, int, int, int]:
        """Return the candidate's rank: the greatest takes over."""
        report = self.report
        return not self.restarted, report.stays, report.view, report.offset, report.seq


def incarnation_in_set(facts: StoreFacts, node: str, report: StoreReport) -> str:
    """Return the incarnation in the set that a store is, or continues whole; empty: none."""
    for incarnation in (report.incarnation, *reversed(report.continues)):
        if incarnation and StoreMember(node, incarnation) in facts.in_sync:
            return incarnation
    return ""


def candidates(stores: Stores) -> list[Candidate]:
    """Return the stores that may take over from the primary, the best first."""
    facts = stores.facts
    found = []
    for node in stores.voters:
        report = stores.ready(node)
        if report is None or StoreMember(node, report.incarnation) == facts.primary_member:
            continue
        if old := incarnation_in_set(facts, node, report):
            found.append(Candidate(node, old, report))
    return sorted(found, key=lambda one: (one.rank, one.node), reverse=True)


def elect_command(stores: Stores, winner: Candidate, drop: str) -> tuple[Any, ...]:
    """Return the command that makes ``winner`` primary; ``drop``: a node to leave out, or empty."""
    report = winner.report
    seen = highest_view(stores, report)
    node, view = winner.node, stores.facts.view
    return "elect", view, node, winner.old, report.incarnation, "" if drop == node else drop, seen


def highest_view(stores: Stores, chosen: StoreReport) -> int:
    """
    Return the greatest view in data of the chosen store's history.

    A store follows no other of a lower view than its own data's. A store of another history keeps
    its data until an operator gives them up, or chooses between them.
    """
    return max(one.view for one in stores.reports.values() if one.founding == chosen.founding)


def highest_view_of_all(stores: Stores) -> int:
    """
    Return the greatest view in the data of any store that is heard.

    Where a beginning is chosen, after Raft's folders were lost or with the last resort, the new
    view is above all of them: lease numbers begin with the view, and none is to be given twice.
    """
    return max(one.view for one in stores.reports.values())


def fullest(stores: Stores) -> str:
    """Return the voting node whose store's data came furthest; empty: no store can take a role."""
    ready = {node: report for node in stores.voters if (report := stores.ready(node))}
    if not ready:
        return ""
    return max(
        sorted(ready),
        key=lambda node: (
            ready[node].view,
            ready[node].seq,
            ready[node].stays,
            ready[node].offset,
        ),
    )


def histories(stores: Stores) -> dict[str, list[str]]:
    """
    Return the nodes whose stores have data, by the word of their history.

    A store of a version before replication has no word; its data are a history of their own.
    """
    found: dict[str, list[str]] = {}
    for node in sorted(stores.voters):
        report = stores.reports.get(node)
        if report is not None and report.view:
            found.setdefault(report.founding or f"without a word, of {node}", []).append(node)
    return found


def _apart(told: dict[str, list[str]]) -> str:
    parts = " and ".join(_names(nodes) for nodes in told.values())
    return (
        f"the stores of {parts} have different data, of clusters that were founded apart;"
        " run `tidewarden cluster recover NODE` with the node whose data are to be kept"
    )


def _names(nodes: frozenset[str] | set[str] | list[str]) -> str:
    return ", ".join(sorted(nodes))


@dataclass(slots=True)
class Election:
    """Remembers, during one term of the Raft leader, since when each store cannot take over."""

    began_s: float
    """When this node began to lead; a node that was never heard is silent since then."""
    times: ElectionTimes = field(default_factory=ElectionTimes)
    recover_s: float = 0.0
    """
    After so long without a store that fits, a majority of the stores is enough; 0: never by itself.
    """
    _asked_s: float = float("-inf")
    _asked: StoreFacts | None = None
    _view: int = -1
    """The view that the times below are about."""
    _reported_s: float = 0.0
    """When the primary's node last said something of its store."""
    _troubled_s: float | None = None
    """Since when the primary must be replaced."""
    _unfit_s: float | None = None
    """Since when no store fits."""

    @property
    def is_calm(self) -> bool:
        """Return whether the primary needed not be replaced when that was decided last."""
        return self._view > 0 and self._troubled_s is None

    def decide(
        self,
        facts: StoreFacts,
        voters: frozenset[str],
        reports: Mapping[str, StoreReport],
        silence: Mapping[str, float],
        now_s: float,
        word: str | None = None,
        ended: frozenset[str] = frozenset(),
    ) -> Choice:
        """
        Return what to propose now, if anything.

        ``reports``: what each node said last of its store; old ones may be left out. ``silence``:
        seconds since each node was heard, by whatever message; 0 for this one. ``now_s``: monotonic
        seconds. ``word``: what an operator said by ``cluster recover``: the node to take, or empty
        for the fullest; None: no operator said anything. ``ended``: nodes whose processes are known
        to have ended, which need not be silent for long.
        """
        heard = {
            node: report
            for node, report in reports.items()
            if silence.get(node, now_s - self.began_s) <= self.times.dead_s and node not in ended
        }
        stores = Stores(facts, voters, heard)
        if facts.view != self._view:
            self._view, self._reported_s = facts.view, now_s
            self._troubled_s = self._unfit_s = None
        if facts.primary in reports:
            self._reported_s = now_s
        if not facts.view:
            choice = self._found(stores, word)
        else:
            silent_s = max(
                silence.get(facts.primary, now_s - self.began_s), now_s - self._reported_s
            )
            has_ended = facts.primary in ended
            silent = silent_s > self.times.dead_s and not has_ended
            choice = self._replace(stores, _trouble(stores, silent, has_ended), silent, now_s, word)
        if choice.command is None:
            return choice
        if facts == self._asked and now_s - self._asked_s < self.times.again_s:
            return Choice()
        self._asked, self._asked_s = facts, now_s
        return choice

    # The first primary.

    def _found(self, stores: Stores, word: str | None) -> Choice:
        if not stores.voters:  # Raft has not told the members yet.
            return Choice()
        ready = {node for node in stores.voters if stores.ready(node)}
        missing = stores.voters - ready
        enough = word is not None and len(ready) >= majority_of(stores.voters)
        if not ready or (missing and not enough):
            return Choice(
                None,
                f"no store is primary yet, and the stores of {_names(missing)} are not ready; start"
                " every node, or run `tidewarden cluster recover NODE` to go on without",
            )
        told = histories(stores)
        if word and word not in ready:
            return Choice(None, f"{word} cannot be made primary: its store is not ready")
        if len(told) > 1 and not word:
            return Choice(None, _apart(told))
        best = fullest(stores)
        node = word or best
        report, seen = stores.reports[node], highest_view_of_all(stores)
        certain = not missing and len(told) <= 1 and (node == best or not told)
        empty = any(not stores.reports[one].view for one in ready)  # they may have had more
        loss: tuple[str, ...] = ("possible",) if told and empty else ()
        loss = loss if certain else ("likely",)
        command = "found", node, report.incarnation, seen, *loss
        return Choice(command, f"{node}'s store becomes the first primary")

    # Another primary.

    def _replace(
        self, stores: Stores, trouble: str, silent: bool, now_s: float, word: str | None
    ) -> Choice:
        """
        Choose another primary where ``trouble`` says why; ``silent``: it was not heard for long.
        """
        if not trouble:
            self._troubled_s = self._unfit_s = None
            return Choice()
        if self._troubled_s is None:
            self._troubled_s = now_s
        waited_s = now_s - self._troubled_s
        able = candidates(stores)
        if able:
            self._unfit_s = None
            best = able[0]
            if best.restarted or not best.report.stays:
                early = bool(_hopes(stores)) and waited_s < self.times.continuation_s
            else:
                early = (
                    not silent and waited_s < self.times.settle_s and _follow_still(stores, able)
                )
            if early:
                return Choice()
            command = elect_command(stores, best, stores.facts.primary)
            return Choice(command, f"{trouble}: {best.node} takes over")
        if self._unfit_s is None:
            self._unfit_s = now_s
        late = bool(self.recover_s) and now_s - self._unfit_s >= self.recover_s
        return _last_resort(stores, trouble, late, word)


def _trouble(stores: Stores, silent: bool, has_ended: bool) -> str:
    """Say why the primary must be replaced; empty: it need not be."""
    facts = stores.facts
    node = facts.primary
    report = stores.reports.get(node)
    if node not in stores.voters:
        return f"{node}, whose store is the primary, does not vote"
    if has_ended:
        return f"the process of {node}, whose store is the primary, has ended"
    if silent:
        return f"{node}, whose store is the primary, is silent"
    if report is None:
        return ""
    if report.another_please:
        return f"{node} asks that another store be the primary"
    if report.incarnation and report.incarnation != facts.incarnation:
        return f"{node}'s store, the primary, has restarted"
    return ""


def _hopes(stores: Stores) -> set[str]:
    """Return the members which may yet turn out to live, by node."""
    found = set()
    for member in stores.facts.in_sync:
        report = stores.reports.get(member.node)
        if member.node not in stores.voters or member == stores.facts.primary_member:
            continue
        if report is None or report.incarnation in ("", member.incarnation):
            found.add(member.node)
    return found


def _follow_still(stores: Stores, able: list[Candidate]) -> bool:
    """Return whether a candidate may still receive writes: its report is older than the trouble."""
    primary = ".".join(stores.facts.primary_member)
    return any(one.report.follows == primary for one in able)


def _last_resort(stores: Stores, trouble: str, late: bool, word: str | None) -> Choice:
    """Choose among stores of which none is known to have every acknowledged write."""
    facts, voters = stores.facts, stores.voters
    members = facts.nodes_in_sync & voters
    ready = {node for node in voters if stores.ready(node)}
    if word and word not in ready:
        return Choice(None, f"{trouble}; {word} cannot take over: its store is not ready")
    lost = {node for node in members & ready if _lost_its_data(stores, node, word)}
    unheard = members - ready | lost
    whole = {
        node for node in members & ready if incarnation_in_set(facts, node, stores.reports[node])
    }
    if whole:  # The primary itself: it lives, and has everything.
        return Choice(
            None,
            f"{trouble}, but no other store that has every acknowledged write is heard:"
            f" {_names(unheard) or 'none is left'}; start it, or mend the links between the nodes",
        )
    majority = majority_of(voters)
    forced = (late or word is not None) and len(ready) >= majority
    empty = not any(stores.reports[node].view for node in ready)
    if unheard and not forced and not (empty and unheard <= ready):
        came = f" ({_names(lost)} came back without its data: is its disk mounted?)" if lost else ""
        return Choice(
            None,
            f"{trouble}, and no store that has every acknowledged write is heard; it is among those"
            f" of {_names(unheard)}{came}: start them, or run `tidewarden cluster recover` to go on"
            f" without, once {majority} of the {len(voters)} stores run ({len(ready)} do)",
        )
    told = histories(stores)
    if len(told) > 1 and not word:
        return Choice(None, f"{trouble}; {_apart(told)}")
    node = word or fullest(stores)
    report = stores.reports[node]
    if not report.view and word is None:
        return Choice(
            None,
            f"{trouble}, and every store that is heard is empty ({_names(ready)}); bring the data"
            " back, or run `tidewarden cluster recover` to begin anew",
        )
    certain = not unheard and bool(report.view) and node == fullest(stores)
    loss = _loss(stores, members) if certain else "likely"
    seen = highest_view_of_all(stores)
    command = "recover", facts.view, facts.version, node, report.incarnation, seen, loss
    return Choice(command, f"{trouble}: {node}, whose data came furthest, takes over")


def _loss(stores: Stores, members: frozenset[str]) -> str:
    """
    Word which writes may be missing after the fullest store of all took over.

    None are, if every member's store has each write on its disk before it acknowledges it, and all
    of them are heard, and have data of one history.
    """
    reports = [stores.reports[node] for node in members]
    return "" if all(one.fsync == "always" and one.founding for one in reports) else "possible"


def _lost_its_data(stores: Stores, node: str, word: str | None) -> bool:
    """
    Return whether a store came back empty, or with other data than those that an operator chose.

    A member that lost its disk, or did not mount it, has nothing of what it acknowledged.
    """
    report = stores.reports[node]
    return not report.view or bool(word and report.founding != stores.reports[word].founding)
