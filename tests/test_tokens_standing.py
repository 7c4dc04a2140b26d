"""How a provider stands with us: what is told to all nodes and to the log, and what an operator reads of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tokens_harness as harness

from tidewarden import errors
from tidewarden.clock import ManualClock
from tidewarden.tokens.answers import Verdict
from tidewarden.tokens.findings import GateView
from tidewarden.tokens.ledger import Ledger
from tidewarden.tokens.outbox import details
from tidewarden.tokens.standing import Seen, Standing, beside, figures

pytestmark = pytest.mark.live
QUEUE = "_tokens:p:c0"
PROVIDER = harness.provider("http://user@127.0.0.1:9/token")
REFUSED = Verdict("refused", "provider", "no connection: Connection refused", answered=False)
OK = Verdict("ok", "ok")


class Bench:
    """Nodes that meet with things, on a store whose clock stands where the test puts it."""

    def __init__(self, queues: Any) -> None:
        self.now_ms = 1_000_000
        self.clock = ManualClock()

        async def script(name: str, queue: str, shard: int, args: Any) -> Any:
            return await queues.script(name, queue, shard, args, now_ms=self.now_ms)

        self.ledger = Ledger(script, queues.shard_of)

    def node(self, name: str) -> Standing:
        return Standing(PROVIDER, QUEUE, self.ledger, self.clock, name)

    async def seen(self) -> list[Seen]:
        return [Seen(*one) for one in (await self.ledger.standing(QUEUE, "read"))[1]]

    async def pass_s(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        self.now_ms += int(seconds * 1000)


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Bench]:
    async with harness.node(valkey, tmp_path, PROVIDER, go=False) as side:
        yield Bench(side.queues)


async def test_trouble_is_told_from_the_second_on_and_again_when_it_is_over(bench: Bench, caplog: Any) -> None:
    node = bench.node("n0")
    await node.heard(REFUSED, 0)
    assert not await bench.seen()
    await bench.pass_s(1)
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        await node.heard(REFUSED, 4)
        assert await bench.seen() == [Seen("n0", 1_000_000, 1_001_000, 1_005_000, "refused", REFUSED.message)]
        await bench.pass_s(2)
        await node.heard(REFUSED, 0)  # Too soon to tell it anew.
        assert (await bench.seen())[0].last_ms == 1_001_000
        await bench.pass_s(5)
        await node.heard(REFUSED, 0)
        assert await bench.seen() == [Seen("n0", 1_000_000, 1_008_000, 0, "refused", REFUSED.message)]
        await node.heard(OK, 0)
    assert not await bench.seen()
    assert [record.getMessage() for record in caplog.records] == [
        "p does not answer: no connection: Connection refused. See whether http://127.0.0.1:9 is up, and whether this host "
        "reaches it; its accounts are tried again by themselves",
        "p answers again, after 8 s",
    ]


async def test_what_comes_and_goes_is_no_flood(bench: Bench, caplog: Any) -> None:
    node = bench.node("n0")
    with caplog.at_level(logging.WARNING, "tidewarden.tokens"):
        for _ in range(20):
            for verdict in (REFUSED, REFUSED, OK):
                await node.heard(verdict, 0)
                await bench.pass_s(1)
    assert len(caplog.records) == 2 * 1  # a minute of it


async def test_a_node_that_was_started_again_knows_since_when(bench: Bench) -> None:
    for _ in range(2):
        await bench.node("n0").heard(REFUSED, 0)
    node = bench.node("n0")
    await node.heard(REFUSED, 0)
    await node.heard(REFUSED, 0)
    await bench.pass_s(60)
    again = bench.node("n0")
    for _ in range(2):
        await again.heard(REFUSED, 0)
    assert [(one.since_ms, one.last_ms) for one in await bench.seen()] == [(1_000_000, 1_060_000)]
    await bench.node("n0").heard(OK, 0)  # And one whose first request is answered that it is over.
    assert not await bench.seen()


async def test_that_nobody_answers_is_an_event_and_so_is_its_end(bench: Bench) -> None:
    node, told = bench.node("n0"), []

    async def hears(verdict: Verdict, *, silent: bool) -> bool:
        said = await node.heard(verdict, 4, silent=silent)
        for entry in await bench.ledger.tell(QUEUE, 0, 10, 1000):
            _, kind, _, account, data = entry.split(b"\n", 4)
            told.append((kind.decode(), account, details(kind.decode(), data)))
            await bench.ledger.tell(QUEUE, 0, 10, 1000, [entry])
        return said

    assert not await hears(REFUSED, silent=False)
    assert await hears(REFUSED, silent=True)  # At once, however lately the store heard of it.
    assert not await hears(REFUSED, silent=True)
    assert told == [("provider.silent", b"", {"node": "n0", "error": "refused", "message": REFUSED.message})]
    node = bench.node("n0")  # Started again it finds the same: no second event.
    await bench.pass_s(10)
    assert not await hears(REFUSED, silent=True)
    assert len(told) == 1
    assert await hears(OK, silent=False)
    assert told[1:] == [("provider.answers", b"", {"node": "n0"})]
    await hears(REFUSED, silent=False)
    await hears(REFUSED, silent=False)
    await hears(OK, silent=False)
    assert len(told) == 2


async def test_a_note_of_which_nothing_more_is_heard_is_forgotten(bench: Bench) -> None:
    for name in ("n0", "n1"):
        node = bench.node(name)
        for _ in range(2):
            await node.heard(REFUSED, 0)
        await bench.pass_s(100)
    assert [one.node for one in await bench.seen()] == ["n1"]


async def test_a_store_that_is_away_is_told_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench.node("n0")

    async def away(*_: Any) -> Any:
        raise errors.StoreDown("away")

    with monkeypatch.context() as patch:
        patch.setattr(bench.ledger, "standing", away)
        for _ in range(3):
            await node.heard(REFUSED, 0)
    await node.heard(REFUSED, 0)
    assert [one.node for one in await bench.seen()] == ["n0"]


async def test_an_end_that_the_store_did_not_hear_of_is_told_by_the_next_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node("n0")
    await node.heard(REFUSED, 4, silent=True)

    async def away(*_: Any) -> Any:
        raise errors.StoreDown("away")

    with monkeypatch.context() as patch:
        patch.setattr(bench.ledger, "standing", away)
        assert not await node.heard(OK, 0)
    assert [one.node for one in await bench.seen()] == ["n0"]
    await bench.pass_s(1)
    assert await node.heard(OK, 0)
    assert not await bench.seen()
    kinds = [entry.split(b"\n")[1] for entry in await bench.ledger.tell(QUEUE, 0, 10, 1000)]
    assert kinds == [b"provider.silent", b"provider.answers"]


async def test_trouble_that_comes_while_its_end_is_told_ends_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, tell, reached, may_go = bench.node("n0"), bench.ledger.standing, asyncio.Event(), asyncio.Event()
    await node.heard(REFUSED, 4, silent=True)

    async def slow(queue: str, verb: str, *args: Any) -> Any:
        found = await tell(queue, verb, *args)
        if verb == "over" and not reached.is_set():
            reached.set()
            await may_go.wait()
        return found

    monkeypatch.setattr(bench.ledger, "standing", slow)
    ending = asyncio.create_task(node.heard(OK, 0))
    await reached.wait()
    assert await node.heard(REFUSED, 4, silent=True)
    may_go.set()
    assert await ending
    assert await node.heard(OK, 0)
    assert not await bench.seen()


async def test_words_that_are_cut_within_a_character_are_read_all_the_same(bench: Bench) -> None:
    verdict = Verdict("unavailable", "provider", "HTTP 503 " + "я" * 200)
    node = bench.node("n0")
    for _ in range(2):
        await node.heard(verdict, 0)
    (seen,) = await bench.seen()
    assert seen.message == ("HTTP 503 " + "я" * 200)[: len(seen.message)]
    assert len(seen.message) > 100


def test_figures_of_a_provider_that_answers() -> None:
    found = figures(PROVIDER, GateView(now_ms=5), [], 9)
    assert found["state"] == "answers"
    assert (found["since_ms"], found["next_ms"], found["error"], found["nodes"]) == (0, 0, "", [])


@pytest.mark.parametrize(
    ("gate", "seen", "expected"),
    [
        (
            GateView(now_ms=50),
            [Seen("n1", 20, 40, 80, "refused", "no"), Seen("n0", 10, 30, 70, "tls", "bad")],
            ("silent", 10, 70, "refused", ["n0", "n1"]),
        ),
        (
            GateView(now_ms=50),
            [Seen("n1", 20, 40, 0, "unavailable", "HTTP 503")],
            ("erring", 20, 60, "unavailable", ["n1"]),
        ),
        (
            GateView(now_ms=50, failures=2, until_ms=90, since_ms=15, reason="invalid_client HTTP 401"),
            [],
            ("refusing", 15, 90, "invalid_client", []),
        ),
        (GateView(now_ms=50, rate=2.5), [], ("limiting", 0, 60, "rate_limited", [])),
    ],
)
def test_figures_of_a_provider_in_trouble(gate: GateView, seen: list[Seen], expected: tuple[Any, ...]) -> None:
    found = figures(PROVIDER, gate, seen, 60)
    assert (found["state"], found["since_ms"], found["next_ms"], found["error"], found["nodes"]) == expected
    assert found["advice"]


async def test_an_answer_to_one_node_ends_it_for_all_until_another_says_otherwise(bench: Bench) -> None:
    one, two = bench.node("n0"), bench.node("n1")
    for node in (one, two):
        for _ in range(2):
            await node.heard(REFUSED, 0)
    await bench.pass_s(10)
    await one.heard(OK, 0)
    assert not await bench.seen()
    await two.heard(REFUSED, 0)
    assert [(seen.node, seen.since_ms) for seen in await bench.seen()] == [("n1", 1_000_000)]


@pytest.mark.parametrize(
    ("state", "error", "next_ms", "expected"),
    [
        ("late", "", 40, ("unavailable", 90)),
        ("expiring", "", 40, ("unavailable", 90)),
        ("failing", "rejected", 40, ("rejected", 90)),
        ("failing", "rejected", 99, ("rejected", 99)),
        ("fresh", "", 40, ("", 40)),
        ("dead", "invalid_grant", 0, ("invalid_grant", 0)),
    ],
)
def test_an_account_that_is_due_waits_for_its_provider(
    state: str, error: str, next_ms: int, expected: tuple[str, int]
) -> None:
    gate = GateView(now_ms=50, failures=2, until_ms=90, since_ms=15, reason="unavailable HTTP 503")
    account = {"state": state, "error": error, "message": "", "next_ms": next_ms, "advice": ""}
    found = beside(account, figures(PROVIDER, gate, [], 0))
    assert (found["error"], found["next_ms"]) == expected
    assert bool(found["advice"]) == (state in ("late", "expiring"))
