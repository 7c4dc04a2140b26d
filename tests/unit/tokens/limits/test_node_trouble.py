"""
What one node meets with at a provider: what is told to all nodes and said in the log, in time that
is handed in.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from support.tokens import harness

from tidewarden.tokens.limits.client_record import ClientRecord, Silence
from tidewarden.tokens.limits.evidence import kind_of
from tidewarden.tokens.limits.judgement import HEARD_MS, Told, fold
from tidewarden.tokens.limits.node_trouble import NodeTrouble
from tidewarden.tokens.provider.token_response import Verdict

PROVIDER = harness.provider("http://user@127.0.0.1:9/token")
GONE = "no connection: Connection refused"
REFUSED = Verdict("refused", "provider", GONE, answered=False, brief=GONE)
ERRING = Verdict("unavailable", "provider", "HTTP 500 ada@example.com", brief="HTTP 500")
OK = Verdict("ok", "ok")


@dataclass
class Bench:
    """A record, the time, and what was told of it."""

    record: ClientRecord = field(default_factory=ClientRecord)
    now_s: float = 1000.0
    told: list[tuple[str, str]] = field(default_factory=list)

    def hears(
        self, node: NodeTrouble, verdict: Verdict, account: str = "a", *, name: str = "n0",
        silent: bool = False, known_well: bool = True,
    ) -> None:  # fmt: skip
        node.heard(
            account,
            verdict,
            kind_of(verdict),
            known_well=known_well,
            silent=silent,
            now_s=self.now_s,
        )
        self.tells(node, name=name, silent=silent)

    def tells(self, node: NodeTrouble, *, name: str = "n0", silent: bool = False) -> None:
        told, clock_ms = Told(name), int(self.now_s * 1000)
        noted = self.record.silences.get(name)
        if node.due(noted, clock_ms):
            told.silence, told.silent, told.answered = node.report(
                noted, self.now_s, clock_ms, 4000 if silent else 0
            )
            self.told += [tuple(event) for event in fold(self.record, told, clock_ms)]

    def seen(self) -> dict[str, Silence]:
        return self.record.silences


def test_trouble_is_told_from_the_second_on_and_again_when_it_is_over(caplog: Any) -> None:
    bench, node = Bench(), NodeTrouble(PROVIDER)
    bench.hears(node, REFUSED)
    assert not bench.seen()
    bench.now_s += 1
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        bench.hears(node, REFUSED)
        assert bench.seen() == {"n0": Silence(1_000_000, 1_001_000, 0, "refused", GONE)}
        bench.now_s += 2
        bench.hears(node, REFUSED)  # Too soon to tell it anew.
        assert bench.seen()["n0"].last_ms == 1_001_000
        bench.now_s += 5
        bench.hears(node, REFUSED)
        assert bench.seen()["n0"].last_ms == 1_008_000
        bench.hears(node, OK)
    assert not bench.seen()
    assert [record.getMessage() for record in caplog.records] == [
        (
            "p does not answer: no connection: Connection refused. See whether http://127.0.0.1:9"
            " is up, and whether this host reaches it; its accounts are tried again by themselves"
        ),
        "p answers again, after 8 s",
    ]


def test_that_the_journal_is_well_ends_no_other_trouble() -> None:
    bench, node = Bench(), NodeTrouble(PROVIDER)
    for _ in range(2):
        node.heard("a", REFUSED, "silent", known_well=True, silent=False, now_s=bench.now_s)
    node.block("", bench.now_s)
    bench.tells(node)
    assert list(bench.seen()) == ["n0"]


def test_what_comes_and_goes_is_no_flood(caplog: Any) -> None:
    bench, node = Bench(), NodeTrouble(PROVIDER)
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        for _ in range(20):
            for verdict in (REFUSED, REFUSED, OK):
                bench.hears(node, verdict)
                bench.now_s += 1
    assert len(caplog.records) == 2  # a minute of it


def test_one_account_that_fails_is_not_the_providers_trouble() -> None:
    bench, node = Bench(), NodeTrouble(PROVIDER)
    for _ in range(50):
        bench.hears(node, ERRING, "bad")
        bench.now_s += 1
    assert not bench.seen()
    bench.hears(node, ERRING, "another")
    assert bench.seen()["n0"].brief == "HTTP 500"  # And nothing of what it said of whom.
    alone = NodeTrouble(PROVIDER)
    for _ in range(2):
        bench.hears(alone, ERRING, "only", name="n1", known_well=False)
    assert "n1" in bench.seen()  # Nobody was ever refreshed well: it may be all there is.


def test_a_node_that_was_started_again_knows_since_when() -> None:
    bench = Bench()
    node = NodeTrouble(PROVIDER)
    for _ in range(2):
        bench.hears(node, REFUSED)
    bench.now_s += 60
    again = NodeTrouble(PROVIDER)
    for _ in range(2):
        bench.hears(again, REFUSED)
    assert [(one.since_ms, one.last_ms) for one in bench.seen().values()] == [
        (1_000_000, 1_060_000)
    ]
    third = NodeTrouble(PROVIDER)
    bench.hears(third, OK)
    assert not bench.seen()


def test_that_nobody_answers_is_an_event_and_so_is_its_end() -> None:
    bench, node = Bench(), NodeTrouble(PROVIDER)
    bench.hears(node, REFUSED)
    assert not bench.told
    bench.hears(node, REFUSED, silent=True)  # At once, however lately the store heard of it.
    bench.hears(node, REFUSED, silent=True)
    assert bench.told == [("provider.silent", f"n0 refused {GONE}")]
    node = NodeTrouble(PROVIDER)  # Started again it finds the same: no second event.
    bench.now_s += 10
    bench.hears(node, REFUSED, silent=True)
    assert len(bench.told) == 1
    bench.hears(node, OK)
    assert bench.told[1:] == [("provider.answers", "n0")]
    for verdict in (REFUSED, REFUSED, OK):
        bench.hears(node, verdict)
    assert len(bench.told) == 2


def test_a_note_of_which_nothing_more_is_heard_is_forgotten() -> None:
    bench = Bench()
    for name in ("n0", "n1"):
        node = NodeTrouble(PROVIDER)
        for _ in range(2):
            bench.hears(node, REFUSED, name=name)
        bench.now_s += HEARD_MS / 1000 - 10
    fold(bench.record, Told("n2"), int(bench.now_s * 1000))
    assert list(bench.seen()) == ["n1"]


def test_what_the_store_did_not_hear_is_told_with_the_next() -> None:
    bench, node = Bench(), NodeTrouble(PROVIDER)
    for _ in range(2):
        node.heard("a", REFUSED, "silent", known_well=True, silent=True, now_s=bench.now_s)
    node.report(None, bench.now_s, 1_000_000, 0)
    bench.hears(node, REFUSED, silent=True)
    assert [kind for kind, _ in bench.told] == ["provider.silent"]
    node.heard("a", OK, "ok", known_well=True, silent=False, now_s=bench.now_s)
    node.report(bench.seen()["n0"], bench.now_s, 1_000_000, 0)
    bench.hears(node, OK)
    assert not bench.seen()


def test_a_journal_that_fails_is_told_until_it_is_written() -> None:
    """What is answered meanwhile was asked before."""
    bench, node = Bench(), NodeTrouble(PROVIDER)
    node.block("the journal of n0 is not writable: full", bench.now_s)
    bench.tells(node)
    bench.hears(node, OK)
    bench.now_s += 60
    bench.hears(node, REFUSED)
    assert [(one.since_ms, one.last_ms, one.outcome) for one in bench.seen().values()] == [
        (1_000_000, 1_060_000, "journal")
    ]
    node.block("", bench.now_s)
    bench.tells(node)
    assert not bench.seen()
    assert [kind for kind, _ in bench.told] == ["provider.silent", "provider.answers"]
