"""What is shown of replicated stores: who is primary, in sync, away, and what somebody should do."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
from support import growth
from support.manual_clock import ManualClock

from tidewarden.cluster.replication.store_changes import StoreChange, changes_between
from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.cluster.replication.store_status import StoreStatus
from tidewarden.cluster.replication.way_around import WayShown
from tidewarden.raft.store_facts import StoreFacts, StoreMember

VOTERS = frozenset({"n0", "n1", "n2"})
NAMES = {"n0": "a0", "n1": "a1", "n2": "a2"}
"""The incarnation of each node's store."""


def of(*nodes: str) -> frozenset[StoreMember]:
    return frozenset(StoreMember(node, NAMES[node]) for node in nodes)


ALL = StoreFacts(3, "n0", "a0", of("n0", "n1", "n2"), 9)


class Cluster:
    """Three stores as n1 hears of them; n0 is the primary."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.facts = ALL
        self.reports: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self.changes: list[StoreChange] = []
        self.proposal = self.stuck = ""
        self.way = WayShown()
        self.status = StoreStatus(
            "n1",
            self,
            self.clock,
            backlog_bytes=1_000_000,
            on_change=self.changes.append,
            proposal=lambda: self.proposal,
            stuck=lambda: self.stuck,
            way=lambda: self.way,
        )
        for node in NAMES:
            self.says(node)
        self.says("n0", serves_view=3)

    def ended(self) -> frozenset[str]:
        return frozenset()

    def quorum_fault(self) -> str:
        return ""

    def voters(self) -> frozenset[str]:
        return VOTERS

    def store_facts(self) -> StoreFacts:
        return self.facts

    def store_reports(self) -> dict[str, tuple[float, tuple[Any, ...]]]:
        return self.reports

    def says(self, node: str, **fields: Any) -> None:
        follows = "" if node == self.facts.primary else f"{self.facts.primary}.{NAMES['n0']}"
        usual = {"incarnation": NAMES[node], "offset": 100, "fsync": "everysec", "follows": follows}
        report = StoreReport(**{**usual, "pid": 7, **fields})
        self.reports[node] = (self.clock.monotonic(), report.plain())

    def facts_are(self, **fields: Any) -> None:
        fields = {"version": self.facts.version + 1} | fields
        self.facts = dataclasses.replace(self.facts, **fields)
        self.status.look()

    async def goes_on(self, seconds: float, *silent: str) -> None:
        """Time passes, and all but ``silent`` say again what they said."""
        await self.clock.advance(seconds)
        for node in self.reports.keys() - set(silent):
            self.reports[node] = (self.clock.monotonic(), self.reports[node][1])
        self.status.look()


@pytest.fixture
def stores() -> Cluster:
    made = Cluster()
    made.status.look()
    return made


def test_a_whole_cluster_has_nothing_to_say(stores: Cluster) -> None:
    shown = stores.status.shown()
    assert (shown["primary"], shown["view"], shown["in_sync"]) == ("n0", 3, "n0 n1 n2")
    assert (shown["store_pid"], shown["loss"], shown["last_gap_ms"]) == (7, "", -1)
    assert stores.status.fault() == ""
    assert stores.status.warnings() == {}
    assert stores.status.problems() == stores.changes == []
    copies = stores.status.copies()
    assert [copy["role"] for copy in copies.values()] == ["primary", "member", "member"]
    assert [copy["why"] for copy in copies.values()] == ["", "", ""]


async def test_it_says_how_far_each_store_is_and_why_it_is_not_in_sync(stores: Cluster) -> None:
    stores.says("n0", serves_view=3, offset=5_000)
    stores.says("n1", offset=4_000)
    stores.says("n2", incarnation="b2", follows="", loading=True, sync_share=0.5)
    stores.facts_are(in_sync=of("n0", "n1"))
    copies = stores.status.copies()
    assert [copies[node]["behind"] for node in NAMES] == [0, 1_000, None]
    assert (copies["n2"]["role"], copies["n2"]["sync"]) == ("learner", 0.5)
    assert copies["n2"]["why"] == "it loads its data"
    said = {
        (("sync_share", 0.5), ("follows", "")): "it copies the primary's data",
        (("follows", "n1.a1"),): "it does not follow n0's store yet",
        (("leaving", True),): "its node is about to stop",
        (("why", "its disk is full"),): "its disk is full",
        (): "it follows, and is added once it has caught up",
    }
    for fields, why in said.items():
        stores.says("n2", **dict(fields))
        assert stores.status.copies()["n2"]["why"] == why
    stores.says("n2", incarnation="")
    assert stores.status.copies()["n2"]["role"] == "away"
    await stores.goes_on(5.0, "n2")
    assert stores.status.copies()["n2"]["why"] == "its node was not heard for 5 s"


def test_a_restarted_member_is_a_learner_and_an_elected_one_is_not_open_yet(
    stores: Cluster,
) -> None:
    stores.says("n2", incarnation="b2")
    copy = stores.status.copies()["n2"]
    assert copy["role"] == "learner"
    assert "was started again" in copy["why"]
    stores.facts_are(view=4, primary="n1", incarnation="a1")
    assert stores.status.copies()["n1"] == {
        "role": "primary", "incarnation": "a1", "behind": 0, "sync": None,
        "why": "it is being opened as the primary of view 4",
    }  # fmt: skip


async def test_a_node_that_alone_does_not_hear_the_primary_says_so(stores: Cluster) -> None:
    await stores.goes_on(1.0, "n0")
    assert stores.status.cut_off() == ""
    await stores.goes_on(2.0, "n0")
    said = stores.status.cut_off()
    assert said.startswith("n1 does not hear n0, whose store is the primary")
    assert "mend the link between their hosts" in said
    assert said in stores.status.problems()
    stores.way = WayShown(is_taken=True, why="n2: it does not hear n0 either")
    assert "(n2: it does not hear n0 either)" in stores.status.cut_off()
    stores.way = WayShown(is_taken=True, carrier="n2", connections=12, carried=3)
    said = stores.status.cut_off()
    assert said.startswith("n1 does not reach n0, whose store is the primary")
    assert "go by way of n2" in said
    assert said in stores.status.problems()
    assert stores.status.shown()["detour"] == "n2"
    stats = stores.status.stats()
    assert (stats["store_detour_connections"], stats["store_carried_connections"]) == (12, 3)
    stores.way = WayShown()
    stores.stuck = "n0 is silent, and no store is whole"  # this node leads: it knows more
    assert stores.status.cut_off() == ""
    stores.stuck = ""
    await stores.goes_on(0.1)
    assert stores.status.cut_off() == ""


async def test_below_a_majority_is_an_error_and_not_all_is_a_warning(stores: Cluster) -> None:
    await stores.goes_on(5.0, "n2")
    stores.facts_are(in_sync=of("n0", "n1"))
    assert stores.status.fault() == ""
    assert stores.status.warnings() == {
        "stores in sync": "2 of 3 stores are in sync (n2: its node was not heard for 5 s)"
    }
    stores.facts_are(in_sync=of("n0"))
    assert stores.status.fault().startswith("1 of 3 stores are in sync (n0), fewer than a majority")
    assert "NOQUORUM" in stores.status.fault()
    assert stores.status.warnings() == {}


def test_a_cluster_that_was_never_founded_names_who_it_waits_for(stores: Cluster) -> None:
    stores.facts = StoreFacts()
    stores.reports.pop("n2")
    assert stores.status.fault() == (
        "no store was chosen as the primary yet: the stores of n2 are waited for"
    )


def test_a_loss_is_a_warning_until_it_is_confirmed(
    stores: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        stores.facts_are(view=4, primary="n2", incarnation="a2", in_sync=of("n2"), loss="likely")
    assert [change.kind for change in stores.changes] == [
        "store.recovered", "store.removed", "store.removed",
    ]  # fmt: skip
    assert caplog.records[0].levelno == logging.CRITICAL
    stores.facts_are(in_sync=of("n0", "n1", "n2"))
    warning = stores.status.warnings()["loss"]
    assert warning.startswith("acknowledged writes may be missing (likely)")
    assert stores.status.problems() == [warning]
    stats = stores.status.stats()
    assert (stats["store_recoveries_total"], stats["store_loss"]) == (1, 1)
    stores.facts_are(loss="")
    assert stores.status.warnings() == {}
    assert stores.changes[-1].kind == "store.confirmed"


def test_changes_of_the_set_are_told_once_each(stores: Cluster) -> None:
    stores.facts_are(in_sync=of("n0", "n1"))
    stores.status.look()
    stores.facts_are(view=4, primary="n1", incarnation="a1", in_sync=of("n0", "n1"))
    stores.facts_are(in_sync=of("n0", "n1", "n2"))
    assert [(change.kind, change.node) for change in stores.changes] == [
        ("store.removed", "n2"), ("store.elected", "n1"), ("store.added", "n2"),
    ]  # fmt: skip
    assert stores.changes[1].text == (
        "n1's store is the primary (view 4) after n0's; in sync: n0 n1"
    )
    assert stores.status.failovers == 1


def test_several_commands_that_were_learnt_together_are_all_told() -> None:
    after = StoreFacts(5, "n1", "a1", of("n1", "n2"), 14)
    assert [change.kind for change in changes_between(ALL, after)] == [
        "store.elected", "store.removed",
    ]  # fmt: skip
    assert changes_between(ALL, ALL) == []
    founded = changes_between(StoreFacts(), StoreFacts(1, "n0", "a0", of("n0"), 1))
    assert [change.text for change in founded] == [
        "n0's store is the primary (view 1); in sync: n0"
    ]


async def test_the_gap_is_from_the_last_sign_of_the_old_primary_to_the_first_of_the_new(
    stores: Cluster,
) -> None:
    await stores.goes_on(1.0)
    await stores.goes_on(0.7, "n0")
    stores.facts_are(view=4, primary="n1", incarnation="a1")
    await stores.goes_on(0.1, "n0")
    assert stores.status.last_gap_s is None
    stores.says("n1", serves_view=4)
    stores.status.look()
    assert stores.status.shown()["last_gap_ms"] == 800
    assert stores.status.stats()["store_last_gap_ms"] == pytest.approx(800)


async def test_the_doctor_is_told_of_a_minute_at_the_floor(stores: Cluster) -> None:
    stores.facts_are(in_sync=of("n0", "n1"))
    await stores.goes_on(59.0, "n2")
    assert stores.status.problems() == []
    await stores.goes_on(1.0, "n2")
    (problem,) = stores.status.problems()
    assert problem.startswith("for 60 s only n0 and n1 have been in sync: the loss of one more")
    stores.facts_are(in_sync=of("n0", "n1", "n2"))
    assert stores.status.problems() == []


def test_the_doctor_is_told_of_stores_of_unlike_fsync(stores: Cluster) -> None:
    stores.says("n2", fsync="always")
    (problem,) = stores.status.problems()
    assert "(n0: everysec, n1: everysec, n2: always)" in problem


async def test_the_doctor_is_told_of_a_backlog_that_holds_less_than_a_minute(
    stores: Cluster,
) -> None:
    for second in range(1, 8):
        await stores.clock.advance(10.0)
        stores.says("n0", serves_view=3, offset=100 + second * 100_000)
        stores.status.look()
    assert stores.status.write_rate() == pytest.approx(10_000)
    assert stores.status.problems() == []
    for second in range(8, 20):
        await stores.clock.advance(10.0)
        stores.says("n0", serves_view=3, offset=100 + second * 200_000)
        stores.status.look()
    (problem,) = stores.status.problems()
    assert problem.startswith("0.0 MB are written a second, of which the primary keeps 50 s")


def test_the_figures_are_of_each_store_and_of_all(stores: Cluster) -> None:
    stores.says("n2", sync_share=0.25, follows="")
    stores.facts_are(in_sync=of("n0", "n1"))
    stats = stores.status.stats()
    assert (stats["stores_voting"], stats["stores_in_sync"], stats["store_primary"]) == (3, 2, 0)
    assert stats["store_behind_bytes"] == {"n0": 0, "n1": 0}
    assert stats["store_sync_share"] == {"n2": 0.25}
    stores.facts_are(view=4, primary="n1", incarnation="a1")
    stores.says("n1", serves_view=4)
    assert stores.status.stats()["store_primary"] == 1


async def test_where_no_primary_is_open_it_says_what_each_store_lacks(stores: Cluster) -> None:
    await stores.goes_on(5.0, "n0")
    stores.says("n1", incarnation="b1", loading=True)
    assert stores.status.waits_for() == (
        "one of the stores in sync (n0, n1, n2) is to open; n0: its node was not heard for 5 s;"
        " n1: it loads its data"
    )
    stores.stuck = "nobody fits"
    assert stores.status.waits_for() == "nobody fits"


def test_what_is_under_way_and_why_nobody_can_be_chosen_are_said(stores: Cluster) -> None:
    stores.proposal, stores.stuck = "n1.a1 n0.a0", "n0 is silent, and no store is heard"
    assert stores.status.shown()["proposal"] == "n0 n1"
    assert stores.status.warnings() == {"primary": stores.stuck}
    assert stores.status.problems() == [stores.stuck]


async def test_of_what_the_primary_reports_a_minute_is_kept(stores: Cluster) -> None:
    for _ in range(3_000):
        await stores.goes_on(0.1)
    assert growth.by_container(stores.status)["StoreStatus._samples"] < 20
