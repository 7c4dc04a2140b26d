"""What a node says has happened to its cluster."""

from __future__ import annotations

from typing import Any

from support.inspect import kept_of_nodes
from support.manual_clock import ManualClock

from tidewarden.server.console.timeline import KEPT, Timeline


def member(boot: int = 1, raft_s: float | None = 0.1, store_ms: int = 100) -> dict[str, Any]:
    return {
        "boot": boot,
        "raft_heard_s": raft_s,
        "store_age_ms": store_ms,
        "votes": True,
        "met": True,
    }


def status(leader: str = "n0", epoch: int = 1, up: bool = True, **members: Any) -> dict[str, Any]:
    return {
        "node": "n0",
        "leader": leader,
        "epoch": epoch,
        "store": {"up": up},
        "members": {"n0": member(raft_s=None), **members},
    }


SILENT = {"raft_s": 9.0, "store_ms": 9000}


def kinds(timeline: Timeline) -> list[str]:
    return [one.kind for one in reversed(timeline.all())]


def test_an_election_is_told_by_its_epoch() -> None:
    subject = Timeline("n0", ManualClock())
    for seen in (
        status(),
        status(),
        status(leader="", epoch=1),
        status(leader="n1", epoch=1),
        status(leader="n1", epoch=2),
        status(leader="n1", epoch=2),
    ):
        subject.look(seen)
    assert kinds(subject) == ["started", "leaderless", "elected"]
    assert subject.all()[0].text == "n1 leads under epoch 2"


def test_nodes_come_and_go() -> None:
    clock = ManualClock()
    subject = Timeline("n0", clock)
    for seen in (
        status(n1=member()),
        status(n1=member(**SILENT)),
        status(n1=member(**SILENT)),
        status(n1=member(boot=2)),
        status(n1=member(boot=2), n2=member()),
        status(n1=member(boot=2)),
    ):
        subject.look(seen)
    assert kinds(subject) == ["started", "silent", "restarted", "back", "joined", "left"]


def test_a_store_that_is_away_is_no_silence_of_nodes() -> None:
    subject = Timeline("n0", ManualClock())
    subject.look(status(n1=member()))
    subject.look(status(up=False, n1=member(**SILENT)))
    assert subject.silent_since_ms("n1") == 0
    subject.look(status(n1=member(**SILENT)))
    assert subject.silent_since_ms("n1") > 0
    assert kinds(subject) == ["started", "silent"]


def test_it_keeps_so_many() -> None:
    subject = Timeline("n0", ManualClock())
    for epoch in range(1, 10 * KEPT):
        subject.look(status(epoch=epoch))
    assert len(subject.all()) == KEPT
    assert subject.all()[0].text == f"n0 leads under epoch {10 * KEPT - 1}"
    for number in range(1000):
        subject.look(status(**{f"w{number}": member()}))
    assert kept_of_nodes(subject) == [2, 2, 0]
