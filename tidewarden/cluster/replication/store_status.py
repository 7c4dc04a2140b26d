"""Describes a cluster's replicated stores for status, health, metrics, logs and the doctor."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from tidewarden.clock import Clock
from tidewarden.histograms import FAILOVERS, Family
from tidewarden.raft.store_facts import StoreFacts, majority_of, read_set, set_text

from .store_changes import RECOVERED, StoreChange, changes_between
from .store_report import DISK_FULL, ReadReports, StoreReport
from .way_around import WayShown

log = logging.getLogger("tidewarden.daemon")

AWAY_S = 2.0
"""A node that sent no report of its store for so long is shown as away."""
FLOOR_S = 60.0
"""The set may be as small as it can be for so long before the doctor names it."""
BACKLOG_S_MIN = 60.0
"""The writes of so long a time, which a store misses, should fit into the primary's backlog."""
RATE_S = 60.0
"""The write rate is that of the last minute or so."""
SAMPLE_S = 5.0


class SeenStores(Protocol):
    """
    Declares the part of a Raft member that knows the stores; see :class:`.raft_stores.RaftStores`.
    """

    def voters(self) -> frozenset[str]: ...
    def quorum_fault(self) -> str: ...
    def store_facts(self) -> StoreFacts: ...
    def store_reports(self) -> Mapping[str, tuple[float, tuple[Any, ...]]]: ...


class StoreStatus:
    """
    Watches facts and reports, as one node hears them.

    :meth:`look` whenever they changed; it also tells ``on_change`` of each change and logs it.
    """

    def __init__(
        self,
        node: str,
        stores: SeenStores,
        clock: Clock,
        *,
        pace: float = 1.0,
        backlog_bytes: int = 256 << 20,
        on_change: Callable[[StoreChange], None] | None = None,
        proposal: Callable[[], str] = str,
        stuck: Callable[[], str] = str,
        way: Callable[[], WayShown] = WayShown,
    ) -> None:
        """
        Args:
            node: this one.
            pace: ``raft.pace``, by which times of silence are longer.
            backlog_bytes: what a primary keeps of its stream for stores that were away.
            proposal: the set, as text, that this node, the primary's, is about to have; empty: no
                other.
            stuck: why this node, which leads Raft, can choose no primary; empty: it can, or need
                not.
            way: how this node goes to the primary.
        """
        self._node = node
        self._stores = stores
        self._clock = clock
        self._away_s = AWAY_S * pace
        self._backlog_bytes = backlog_bytes
        self._on_change = on_change
        self._proposal, self._stuck, self._way = proposal, stuck, way
        self._reports = ReadReports()
        self._facts: StoreFacts | None = None
        self._open_view = 0
        """The view in which a primary was last known to be open, and when that was heard last."""
        self._open_s = 0.0
        self._floor_since_s: float | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._sampled_view = 0
        self.failovers = 0
        """How often another store became primary since this node started."""
        self.recoveries = 0
        """How often such a change was a last resort."""
        self.last_gap_s: float | None = None
        self.times = Family(FAILOVERS)
        """How long no primary was open when the last one ended; None: none has ended yet."""

    # --- watching

    def look(self) -> None:
        """Note the changes since the last call."""
        facts, now_s = self._stores.store_facts(), self._clock.monotonic()
        before, self._facts = self._facts, facts
        if before is not None:
            for change in changes_between(before, facts):
                self._note(change)
            self.failovers += int(before.view > 0 and facts.view != before.view)
        self._look_at_primary(facts)
        self._look_at_floor(facts, now_s)

    def _note(self, change: StoreChange) -> None:
        self.recoveries += int(change.kind == RECOVERED)
        log.log(logging.CRITICAL if change.is_unclean else logging.INFO, "%s", change.text)
        if self._on_change is not None:
            self._on_change(change)

    def _look_at_primary(self, facts: StoreFacts) -> None:
        heard = self._report(facts.primary)
        if heard is None or not facts.view:
            return
        heard_s, report = heard
        if report.incarnation != facts.incarnation or report.serves_view != facts.view:
            return
        if 0 < self._open_view < facts.view:
            self.last_gap_s = max(0.0, heard_s - self._open_s)
            self.times.of().observe(self.last_gap_s)
        if self._open_view <= facts.view:
            self._open_view, self._open_s = facts.view, heard_s
        if self._sampled_view != facts.view:
            self._sampled_view = facts.view
            self._samples.clear()
        if not self._samples or heard_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((heard_s, report.offset))
        while len(self._samples) > 2 and heard_s - self._samples[0][0] > RATE_S:
            self._samples.popleft()

    def _look_at_floor(self, facts: StoreFacts, now_s: float) -> None:
        voters = self._stores.voters()
        whole = len(facts.nodes_in_sync & voters)
        if not facts.view or whole == len(voters) or whole > majority_of(voters):
            self._floor_since_s = None
        elif self._floor_since_s is None:
            self._floor_since_s = now_s

    # --- what is shown

    def shown(self) -> dict[str, Any]:
        """Return the stores' part of R.STATUS."""
        facts = self._stores.store_facts()
        own = self._report(self._node)
        return {
            "view": facts.view,
            "primary": facts.primary,
            "in_sync": " ".join(sorted(facts.nodes_in_sync)),
            "store_pid": own[1].pid if own else 0,
            "loss": facts.loss,
            "proposal": " ".join(sorted(one.node for one in read_set(self._proposal()))),
            "detour": self._way().carrier,
            "last_gap_ms": -1 if self.last_gap_s is None else round(self.last_gap_s * 1000),
            "store_problems": self.problems(),
        }

    def copies(self) -> dict[str, dict[str, Any]]:
        """
        Return each voting node's store.

        ``role``: ``primary``, ``member`` (in sync), ``learner`` or ``away``. ``behind``: bytes of
        the stream; None: unknown. ``sync``: the share of a full copy that was received; None: none
        is under way. ``why``: why it is not in sync, or serves nobody; empty: nothing is wrong.
        """
        facts = self._stores.store_facts()
        primary = self._report(facts.primary)
        names = self._stores.voters() | self._stores.store_reports().keys()
        return {node: self._copy(node, facts, primary) for node in sorted(names)}

    def _copy(
        self, node: str, facts: StoreFacts, primary: tuple[float, StoreReport] | None
    ) -> dict[str, Any]:
        heard = self._report(node)
        role, why = self._role(node, facts, heard)
        report = heard[1] if heard else StoreReport()
        behind = None
        if role == "primary":
            behind = 0
        elif role != "away" and primary and report.follows == set_text([facts.primary_member]):
            behind = max(0, primary[1].offset - report.offset)
        share = report.sync_share
        return {
            "role": role,
            "incarnation": report.incarnation,
            "behind": behind,
            "sync": share if role != "away" and 0 < share < 1 else None,
            "why": why,
        }

    def _role(
        self, node: str, facts: StoreFacts, heard: tuple[float, StoreReport] | None
    ) -> tuple[str, str]:
        if heard is None:
            return "away", "nothing was heard of its store yet"
        silent_s, report = self._clock.monotonic() - heard[0], heard[1]
        if silent_s > self._away_s and node != self._node:
            return "away", f"its node was not heard for {silent_s:.0f} s"
        if not report.incarnation:
            return "away", report.why or "its store does not run, or does not answer"
        is_member = (node, report.incarnation) in facts.in_sync
        if is_member and node == facts.primary:
            opening = f"it is being opened as the primary of view {facts.view}"
            return "primary", report.why or ("" if report.serves_view == facts.view else opening)
        if is_member:
            return "member", report.why
        return "learner", report.why or self._why_not_in_sync(node, facts, report)

    def _why_not_in_sync(self, node: str, facts: StoreFacts, report: StoreReport) -> str:
        if not facts.view:
            return "no primary was ever chosen"
        if report.loading:
            return "it loads its data"
        if report.leaving:
            return "its node is about to stop"
        if 0 < report.sync_share < 1:
            return "it copies the primary's data"
        if report.follows != set_text([facts.primary_member]):
            return f"it does not follow {facts.primary}'s store yet"
        if node in facts.nodes_in_sync:
            return "it was started again, and is added once it has caught up"
        return "it follows, and is added once it has caught up"

    def fault(self) -> str:
        """Return why writes are not confirmed here; empty: they are."""
        facts, voters = self._stores.store_facts(), self._stores.voters()
        if not facts.view:
            missing = sorted(node for node, copy in self.copies().items() if copy["role"] == "away")
            waits = f" the stores of {', '.join(missing)} are waited for" if missing else ""
            return f"no store was chosen as the primary yet:{waits or ' a leader is waited for'}"
        whole = facts.nodes_in_sync & voters
        if len(whole) < majority_of(voters):
            return (
                f"{len(whole)} of {len(voters)} stores are in sync"
                f" ({' '.join(sorted(whole)) or 'none'}), fewer than a majority: writes are"
                f" answered NOQUORUM until another has caught up{self._missing(facts, voters)}"
            )
        return ""

    def cut_off(self) -> str:
        """
        Say that this node does not hear the primary's node; empty: it does, or it is no news.

        It hears a majority, which has not replaced the primary: others may well hear it.
        """
        facts, heard = self._stores.store_facts(), self._report(self._stores.store_facts().primary)
        if not facts.view or heard is None or facts.primary == self._node:
            return ""
        silent_s, way = self._clock.monotonic() - heard[0], self._way()
        if way.carrier:
            return (
                f"{self._node} does not reach {facts.primary}, whose store is the primary: its"
                f" calls go by way of {way.carrier}, and its own store copies nothing meanwhile;"
                " mend the link between the hosts"
            )
        if silent_s <= self._away_s or self._stuck() or self._stores.quorum_fault():
            return ""
        why = f" ({way.why})" if way.why else ""
        return (
            f"{self._node} does not hear {facts.primary}, whose store is the primary, and the"
            f" others have not replaced it{why}: if it runs, mend the link between their hosts, and"
            " send requests to another node meanwhile"
        )

    def waits_for(self) -> str:
        """Return what each node's store lacks to be primary, while no primary is open."""
        if told := self._stores.quorum_fault() or self._stuck() or self.fault():
            return told
        names = ", ".join(sorted(self._stores.store_facts().nodes_in_sync))
        lacks = [f"{node}: {copy['why']}" for node, copy in self.copies().items() if copy["why"]]
        return f"one of the stores in sync ({names}) is to open; {'; '.join(lacks) or 'it does'}"

    def warnings(self) -> dict[str, str]:
        """Return the warnings of stores that confirm writes, by subject."""
        facts, voters = self._stores.store_facts(), self._stores.voters()
        whole = facts.nodes_in_sync & voters
        found = self._chosen(facts)
        if facts.view and majority_of(voters) <= len(whole) < len(voters):
            found["stores in sync"] = (
                f"{len(whole)} of {len(voters)} stores are in sync{self._missing(facts, voters)}"
            )
        return found | self._full_disks(whole)

    def _chosen(self, facts: StoreFacts) -> dict[str, str]:
        """Return the trouble with the choice of the primary, the last or the next."""
        found = {"primary": self._stuck(), "loss": _of_loss(facts) if facts.loss else ""}
        return {about: text for about, text in found.items() if text}

    def _full_disks(self, nodes: Collection[str]) -> dict[str, str]:
        """Return which of these nodes' stores have no room on their disks."""
        whys = {node: copy["why"] for node, copy in self.copies().items() if node in nodes}
        return {
            f"disk of {node}": f"{node}: {why}"
            for node, why in whys.items()
            if why.startswith(DISK_FULL)
        }

    def _missing(self, facts: StoreFacts, voters: frozenset[str]) -> str:
        """Return why each missing store is missing."""
        copies = self.copies()
        told = [
            f"{node}: {copies[node]['why'] or 'it is about to be added'}"
            for node in sorted(voters - facts.nodes_in_sync)
        ]
        return f" ({'; '.join(told)})" if told else ""

    def problems(self) -> list[str]:
        """Return the doctor's findings on the stores, a sentence each."""
        facts, voters = self._stores.store_facts(), self._stores.voters()
        found = [*self._chosen(facts).values()]
        now_s = self._clock.monotonic()
        if self._floor_since_s is not None and now_s - self._floor_since_s >= FLOOR_S:
            found.append(
                f"for {now_s - self._floor_since_s:.0f} s only"
                f" {' and '.join(sorted(facts.nodes_in_sync)) or 'nobody'} have been in sync: the"
                f" loss of one more stops all writes{self._missing(facts, voters)}"
            )
        if cut_off := self.cut_off():
            found.append(cut_off)
        found += self._full_disks(voters).values()
        reports = {node: one[1] for node in voters if (one := self._report(node))}
        fsyncs = {node: report.fsync for node, report in reports.items() if report.fsync}
        if len(set(fsyncs.values())) > 1:
            told = ", ".join(f"{node}: {fsync}" for node, fsync in sorted(fsyncs.items()))
            found.append(f"store.fsync is not the same on all nodes ({told}): give all the same")
        if backlog := self._short_backlog():
            found.append(backlog)
        return found

    def _short_backlog(self) -> str:
        rate = self.write_rate()
        if not rate or self._backlog_bytes / rate >= BACKLOG_S_MIN:
            return ""
        return (
            f"{rate / 1e6:.1f} MB are written a second, of which the primary keeps"
            f" {self._backlog_bytes / rate:.0f} s: a store that is away for longer needs a copy of"
            " everything"
        )

    def write_rate(self) -> float:
        """Return how many bytes a second the primary's stream has grown by, lately."""
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return max(0.0, (last - first) / (last_s - first_s))

    def stats(self) -> dict[str, Any]:
        """Return the numbers for /metrics."""
        facts, voters, copies = self._stores.store_facts(), self._stores.voters(), self.copies()
        opened, way = self._report(self._node), self._way()
        is_primary = (
            facts.primary == self._node
            and opened is not None
            and opened[1].serves_view == facts.view > 0
        )
        return {
            "stores_voting": len(voters),
            "stores_in_sync": len(facts.nodes_in_sync & voters),
            "store_primary": int(is_primary),
            "store_behind_bytes": {
                node: copy["behind"] for node, copy in copies.items() if copy["behind"] is not None
            },
            "store_sync_share": {
                node: copy["sync"] for node, copy in copies.items() if copy["sync"] is not None
            },
            "store_failovers_total": self.failovers,
            "store_recoveries_total": self.recoveries,
            "store_loss": int(bool(facts.loss)),
            "store_problems": len(self.problems()),
            "store_detour_connections": way.connections,
            "store_carried_connections": way.carried,
            **(
                {"store_last_gap_ms": self.last_gap_s * 1000} if self.last_gap_s is not None else {}
            ),
        }

    def _report(self, node: str) -> tuple[float, StoreReport] | None:
        heard = self._stores.store_reports().get(node)
        report = self._reports.of(node, heard[1]) if heard else None
        return (heard[0], report) if heard and report else None


def _of_loss(facts: StoreFacts) -> str:
    return (
        f"acknowledged writes may be missing ({facts.loss}), for a last resort chose the primary:"
        " `tidewarden cluster confirm` ends this warning"
    )
