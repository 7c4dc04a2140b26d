"""
One node's breaker, in time that is handed in: what it holds back, and what it meets with at a
provider that is told to all nodes and said in the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from support.tokens import harness

from tidewarden.tokens.limits.answer_counts import Silence, Told, kind_of
from tidewarden.tokens.limits.circuit_breaker import MAX_S, CircuitBreaker
from tidewarden.tokens.limits.client_record import ClientRecord
from tidewarden.tokens.limits.judgement import HEARD_MS, fold
from tidewarden.tokens.provider.token_response import Verdict

PROVIDER = harness.provider("http://user@127.0.0.1:9/token")
GONE = "no connection: Connection refused"
REFUSED = Verdict("refused", "provider", GONE, answered=False, brief=GONE)
ERRING = Verdict("unavailable", "provider", "HTTP 500 ada@example.com", brief="HTTP 500")
OK = Verdict("ok", "ok")


def node(patience: int = 1000) -> CircuitBreaker:
    return CircuitBreaker(PROVIDER, patience)


@dataclass
class Bench:
    """A record, the time, and what was told of it."""

    record: ClientRecord = field(default_factory=ClientRecord)
    now_s: float = 1000.0
    told: list[tuple[str, str]] = field(default_factory=list)

    def ends(
        self, node: CircuitBreaker, verdict: Verdict, account: str = "a", *, known_well: bool = True
    ) -> None:
        node.ended(account, verdict, kind_of(verdict), self.now_s, known_well=known_well)

    def hears(
        self, node: CircuitBreaker, verdict: Verdict, account: str = "a", *, name: str = "n0",
        known_well: bool = True,
    ) -> None:  # fmt: skip
        self.ends(node, verdict, account, known_well=known_well)
        self.tells(node, name=name)

    def tells(self, node: CircuitBreaker, *, name: str = "n0") -> None:
        told, clock_ms = Told(name), int(self.now_s * 1000)
        node.report(told, self.record.silences.get(name), self.now_s, clock_ms)
        self.told += [tuple(event) for event in fold(self.record, told, clock_ms)]

    def seen(self) -> dict[str, Silence]:
        return self.record.silences


def test_it_bears_some_silence_then_probes_and_any_answer_closes_it(caplog: Any) -> None:
    breaker, bench = node(3), Bench(now_s=0)
    opened = []
    for _ in range(3):
        bench.ends(breaker, REFUSED)
        opened.append(breaker.open)
    assert opened == [False, False, True]
    bench.now_s = 0.5
    bench.ends(breaker, REFUSED)  # One that was under way when it opened.
    assert breaker.allowed(0.5, 16, 0) == 0
    assert breaker.opens_in_s(0.5) == 0.5
    assert breaker.allowed(1, 16, 0) == 1  # A probe.
    assert breaker.allowed(1, 16, 1) == 0
    for at in range(1, 30):
        bench.now_s = 100 * at
        bench.ends(breaker, REFUSED)
    assert breaker.opens_in_s(2900) == MAX_S
    assert caplog.text.count("p does not answer this node") == 1
    breaker.answered(2930)
    assert breaker.allowed(2930, 16, 0) == 16
    for _ in range(2):
        bench.ends(breaker, REFUSED)
    assert not breaker.open


def test_trouble_is_told_from_the_second_on_and_again_when_it_is_over(caplog: Any) -> None:
    bench, breaker = Bench(), node()
    bench.hears(breaker, REFUSED)
    assert not bench.seen()
    bench.now_s += 1
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        bench.hears(breaker, REFUSED)
        assert bench.seen() == {"n0": Silence(1_000_000, 1_001_000, 0, "refused", GONE)}
        bench.now_s += 2
        bench.hears(breaker, REFUSED)  # Too soon to tell it anew.
        assert bench.seen()["n0"].last_ms == 1_001_000
        bench.now_s += 5
        bench.hears(breaker, REFUSED)
        assert bench.seen()["n0"].last_ms == 1_008_000
        bench.hears(breaker, OK)
    assert not bench.seen()
    assert [record.getMessage() for record in caplog.records] == [
        (
            "p does not answer: no connection: Connection refused. See whether http://127.0.0.1:9"
            " is up, and whether this host reaches it; its accounts are tried again by themselves"
        ),
        "p answers again, after 8 s",
    ]


def test_what_comes_and_goes_is_no_flood(caplog: Any) -> None:
    bench, breaker = Bench(), node()
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        for _ in range(20):
            for verdict in (REFUSED, REFUSED, OK):
                bench.hears(breaker, verdict)
                bench.now_s += 1
    assert len(caplog.records) == 2  # a minute of it


def test_one_account_that_fails_is_not_the_providers_trouble() -> None:
    bench, breaker = Bench(), node()
    for _ in range(50):
        bench.hears(breaker, ERRING, "bad")
        bench.now_s += 1
    assert not bench.seen()
    bench.hears(breaker, ERRING, "another")
    assert bench.seen()["n0"].brief == "HTTP 500"  # And nothing of what it said of whom.
    alone = node()
    for _ in range(2):
        bench.hears(alone, ERRING, "only", name="n1", known_well=False)
    assert "n1" in bench.seen()  # Nobody was ever refreshed well: it may be all there is.


def test_a_node_that_was_started_again_knows_since_when() -> None:
    bench, breaker = Bench(), node()
    for _ in range(2):
        bench.hears(breaker, REFUSED)
    bench.now_s += 60
    again = node()
    for _ in range(2):
        bench.hears(again, REFUSED)
    assert [(one.since_ms, one.last_ms) for one in bench.seen().values()] == [
        (1_000_000, 1_060_000)
    ]
    bench.hears(node(), OK)
    assert not bench.seen()


def test_that_nobody_answers_is_an_event_and_so_is_its_end() -> None:
    bench, breaker = Bench(), node(3)
    for _ in range(2):
        bench.hears(breaker, REFUSED)
    assert not bench.told
    for _ in range(2):
        bench.hears(breaker, REFUSED)  # At once, however lately the store heard of it.
    assert bench.told == [("provider.silent", f"n0 refused {GONE}")]
    assert bench.seen()["n0"].next_ms == 1_001_000
    breaker = node(1)  # Started again it finds the same: no second event.
    bench.now_s += 10
    bench.hears(breaker, REFUSED)
    assert len(bench.told) == 1
    bench.hears(breaker, OK)
    assert bench.told[1:] == [("provider.answers", "n0")]
    breaker = node()
    for verdict in (REFUSED, REFUSED, OK):
        bench.hears(breaker, verdict)
    assert len(bench.told) == 2


def test_a_note_of_which_nothing_more_is_heard_is_forgotten() -> None:
    bench = Bench()
    for name in ("n0", "n1"):
        breaker = node()
        for _ in range(2):
            bench.hears(breaker, REFUSED, name=name)
        bench.now_s += HEARD_MS / 1000 - 10
    fold(bench.record, Told("n2"), int(bench.now_s * 1000))
    assert list(bench.seen()) == ["n1"]


def test_what_the_store_did_not_hear_is_told_with_the_next() -> None:
    bench, breaker = Bench(), node(2)
    for _ in range(2):
        bench.ends(breaker, REFUSED)
    breaker.report(Told(), None, bench.now_s, 1_000_000)
    bench.hears(breaker, REFUSED)
    assert [kind for kind, _ in bench.told] == ["provider.silent"]
    bench.ends(breaker, OK)
    breaker.report(Told(), bench.seen()["n0"], bench.now_s, 1_000_000)
    bench.hears(breaker, OK)
    assert not bench.seen()


def test_a_journal_that_fails_is_told_until_it_is_written() -> None:
    """What is answered meanwhile was asked before. That it is well ends no other trouble."""
    bench, breaker = Bench(), node()
    for _ in range(2):
        bench.hears(breaker, REFUSED)
    breaker.block("", bench.now_s)
    bench.tells(breaker)
    assert list(bench.seen()) == ["n0"]
    bench.hears(breaker, OK)
    breaker.block("the journal of n0 is not writable: full", bench.now_s)
    bench.tells(breaker)
    bench.hears(breaker, OK)
    bench.now_s += 60
    bench.hears(breaker, REFUSED)
    assert [(one.since_ms, one.last_ms, one.outcome) for one in bench.seen().values()] == [
        (1_000_000, 1_060_000, "journal")
    ]
    breaker.block("", bench.now_s)
    bench.tells(breaker)
    assert not bench.seen()
    assert [kind for kind, _ in bench.told] == ["provider.silent", "provider.answers"]
