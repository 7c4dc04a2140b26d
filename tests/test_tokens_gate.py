"""What holds a client back on all nodes: its script by a frozen clock, and two nodes with a small token endpoint (a double)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import tokens_harness as harness

from tidewarden import errors
from tidewarden.clock import ManualClock
from tidewarden.config import Provider
from tidewarden.tokens.answers import Verdict
from tidewarden.tokens.findings import GateView
from tidewarden.tokens.gate import Gate, Leave
from tidewarden.tokens.ledger import Ledger

pytestmark = pytest.mark.live

QUEUE = "_tokens:p:c0"
PROBE_MS = 40_000


class Bench:
    """The gate's script under a clock that stands where the test puts it."""

    def __init__(self, queues: Any) -> None:
        self.now_ms = 1_000_000

        async def script(name: str, queue: str, shard: int, args: Any) -> Any:
            return await queues.script(name, queue, shard, args, now_ms=self.now_ms)

        self.ledger = Ledger(script, queues.shard_of)

    async def ask(self, wanted: int = 10, most: int = 0) -> GateView:
        return await self.ledger.gate(QUEUE, "ask", wanted, most, PROBE_MS)


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Bench]:
    async with harness.node(valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False) as side:
        yield Bench(side.queues)


async def test_it_closes_lets_one_probe_and_opens(bench: Bench) -> None:
    assert (await bench.ask()).granted == 10
    first = await bench.ledger.gate(QUEUE, "trip", "invalid_client HTTP 401")
    assert (first.failures, first.news, first.since_ms) == (1, True, bench.now_ms)
    again = await bench.ledger.gate(QUEUE, "trip", "invalid_client HTTP 401")
    assert (again.failures, again.news) == (1, False)  # One of those that were under way when it closed.
    closed = await bench.ask()
    assert (closed.granted, closed.wait_ms, closed.free) == (0, 2000, False)
    bench.now_ms += 2000
    probe = await bench.ask()
    assert (probe.granted, probe.probe) == (1, True)
    other = await bench.ask()
    assert (other.granted, other.probe, other.wait_ms) == (0, False, PROBE_MS)
    second = await bench.ledger.gate(QUEUE, "trip", "invalid_client HTTP 401")
    assert (second.failures, second.until_ms - bench.now_ms, second.news) == (2, 4000, False)
    for _ in range(12):
        bench.now_ms = (await bench.ledger.gate(QUEUE, "trip", "")).until_ms
    assert (await bench.ledger.gate(QUEUE, "trip", "")).until_ms - bench.now_ms == 60_000
    opened = await bench.ledger.gate(QUEUE, "recover")
    assert (opened.failures, opened.news, opened.reason) == (0, True, "")
    assert (await bench.ask()).granted == 10
    assert not (await bench.ledger.gate(QUEUE, "recover")).news


async def test_a_reason_that_is_cut_within_a_character_is_read_all_the_same(bench: Bench) -> None:
    """It is 240 characters at most, and 300 bytes in the store."""
    reason = "invalid_client HTTP 401 " + "й" * 200
    for said in (reason, "x" + reason):
        found = await bench.ledger.gate(QUEUE, "trip", said)
        assert found.reason == said[: len(found.reason)]
        assert len(found.reason) > 150
        assert (await bench.ask()).reason == found.reason
        assert await bench.ledger.held_by(QUEUE) == found.reason


async def test_a_rate_is_kept_by_all_together(bench: Bench) -> None:
    granted = 0
    for _ in range(100):
        granted += (await bench.ask(50, 20_000)).granted
        bench.now_ms += 50
    assert 100 <= granted <= 121  # Twenty a second for five seconds, and the first second's worth at once.
    for _ in range(3):
        view = await bench.ask(50, 100)  # One in ten seconds.
    assert (view.granted, view.wait_ms > 0) == (0, True)


@pytest.mark.parametrize(("rate", "granted"), [(0.0, 10), (0.0004, 1), (2.5, 2)])
async def test_a_rate_however_low_is_one(bench: Bench, rate: float, granted: int) -> None:
    provider, unused = Provider(name="p", client_rate=rate), cast(Any, None)
    gate = Gate(provider, QUEUE, unused, bench.ledger, ManualClock(), Random(1), PROBE_MS)
    assert (await gate.ask(10)).requests == granted


async def test_what_was_not_sent_is_given_back(bench: Bench) -> None:
    assert (await bench.ask(50, 10_000)).granted == 10
    assert (await bench.ask(50, 10_000)).granted == 0
    await bench.ledger.gate(QUEUE, "back", 7, 10_000)
    assert (await bench.ask(50, 10_000)).granted == 7


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_step_of_the_stores_clock_holds_nobody_longer(desk: Any, step_ms: int) -> None:
    for verb in (("ask", 5, 1000, 500), ("slow", 500, 2000), ("trip", "refused")):
        desk.client.flushall()
        desk.stamp = ""
        *_, until_ms, _, _, _, _, now_ms = desk.run("tokens.gate", *verb)
        left_ms = max(0, until_ms - now_ms)
        desk.now += step_ms
        desk.stamp = f"~0~1~{step_ms}"
        granted, wait_ms, _, _, until_ms, *_, now_ms = desk.run("tokens.gate", "ask", 1, 1000, 500)
        assert (granted, max(0, until_ms - now_ms)) == (0, left_ms)
        assert 0 < wait_ms <= 2_000
        desk.now += wait_ms
        assert desk.run("tokens.gate", "ask", 1, 1000, 500)[0] == 1


async def test_it_halves_when_told_so_and_grows_back_until_it_is_forgotten(bench: Bench) -> None:
    shrunk = await bench.ledger.gate(QUEUE, "slow", 3000, 40_000)
    assert (shrunk.rate, shrunk.news) == (20, True)
    bench.now_ms += 500
    assert (await bench.ledger.gate(QUEUE, "slow", 0, 40_000)).rate == 20  # Of the same burst.
    assert (await bench.ask()).wait_ms == 2500
    bench.now_ms += 2500
    assert (await bench.ask()).granted == 10
    assert 21 <= (await bench.ask()).rate <= 23
    bench.now_ms += 27_000
    assert 39 <= (await bench.ask()).rate <= 41  # Half a minute brings it back.
    again = await bench.ledger.gate(QUEUE, "slow", 0, 999_000)
    assert 19 <= again.rate <= 21  # Half of what it was, whatever this node may have sent.
    bench.now_ms += 95_000
    assert (await bench.ask()).free


async def test_what_is_not_known_of_its_own_network_is_told_to_nobody() -> None:
    asked: list[str] = []

    class Silent:
        async def gate(self, _queue: str, verb: str, *_args: Any) -> GateView:
            asked.append(verb)
            return GateView(now_ms=5, granted=3, failures=int(verb in ("trip", "slow")), until_ms=9)

        async def pause(self, _queue: str, ms: int) -> None:
            asked.append(f"pause {ms // 1000}")

        async def resume(self, _queue: str) -> None:
            asked.append("resume")

    silent: Any = Silent()
    clock = ManualClock()
    gate = Gate(Provider(name="p", refreshers=4), QUEUE, silent, silent, clock, Random(1), PROBE_MS)
    assert await gate.ask(7) == Leave(3)
    gate.view = GateView()
    assert await gate.ask(7) == Leave(7)  # Nothing is asked while nothing is the matter.
    for _ in range(50):
        await gate.told(Verdict("unknown", "unknown", answered=False))
    await gate.told(Verdict("ok", "ok"))
    assert asked == ["ask"]
    for _ in range(10):
        await gate.told(Verdict("unavailable", "provider", "HTTP 500"))
    assert asked == ["ask", "trip", "pause 60"]
    await gate.told(Verdict("rate_limited", "provider", "HTTP 429", retry_after_s=1.0))
    assert asked[3:] == ["slow", "pause 60"]  # It is closed for other reasons, and longer: that is not cut short.
    del asked[3:]
    await gate.told(Verdict("invalid_grant", "account"))
    assert asked[3:] == ["recover", "resume"]
    gate.view = GateView()
    assert gate.closed.is_set()
    assert await gate.ask(7) == Leave(7)
    assert not gate.closed.is_set(), "it is open again: a take that begins now is not to be broken off"


@contextlib.asynccontextmanager
async def two(store: Any, folder: Path, chosen: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with harness.node(store, folder / "a", chosen, "n0") as one:
        (folder / "b").mkdir()
        (folder / "b" / "secrets").symlink_to(folder / "a" / "secrets")
        async with harness.node(store, folder / "b", chosen, "n1") as other:
            yield one, other


async def test_two_nodes_hold_back_together_and_one_probes(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong secret: whoever meets it pauses the queue for all; when it is right again all go on at once."""
    caplog.set_level(logging.INFO)
    async with harness.endpoint() as endpoint:
        right = asyncio.Event()
        while_wrong = 0

        async def refuse(request: Any, made: Any, token: str) -> Any:
            nonlocal while_wrong
            if right.is_set():
                return made.rotate(token)
            while_wrong += 1
            return await harness.answers(401, {"error": "invalid_client"})(request, made, token)

        endpoint.faults.extend([refuse] * 1000)
        chosen = harness.provider(endpoint.url, refreshers=3)
        async with two(valkey, tmp_path, chosen) as (one, other):
            await asyncio.gather(*(one.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(60)))
            await harness.eventually(lambda: while_wrong >= 3, 15)  # Six under way at most, then probes.

            async def paused() -> int:
                return int((await one.queues.stats(QUEUE))["paused_until_ms"])

            await harness.eventually(paused)
            told = (await other.tokens.stats())["p"]  # Any node tells of it.
            assert told["failures"] >= 1
            assert told["held_until_ms"] > 0
            with pytest.raises(errors.Timeout, match="all accounts of p wait: invalid_client HTTP 401"):
                await other.tokens.get("p/a59")
            assert while_wrong <= 8
            right.set()

            async def done() -> bool:
                stats = (await one.tokens.stats())["p"]
                return bool(stats["fresh"] >= 50)

            await harness.eventually(done)
            assert (await one.tokens.stats())["p"]["failing"] == 0
            assert (await one.queues.stats(QUEUE))["paused_until_ms"] == 0
            held = one.tokens.metrics()["held"]["p"] + other.tokens.metrics()["held"]["p"]
            assert held <= 1  # The one that did not probe hears of it when it asks next.
            told = {("p", "provider.breaker_open"): 1, ("p", "provider.breaker_closed"): 1}
            await harness.eventually(
                lambda: Counter(one.tokens.metrics()["events"]) + Counter(other.tokens.metrics()["events"]) == told
            )
    assert caplog.text.count("refuses our client (invalid_client)") == 1
    assert caplog.text.count("answers again") == 1


async def test_a_rate_limited_provider_is_asked_less_and_all_are_refreshed(valkey: Any, tmp_path: Path) -> None:
    async with harness.endpoint() as endpoint:
        loop = asyncio.get_running_loop()
        begun, at = loop.time(), []

        async def limited(request: Any, made: Any, token: str) -> Any:
            """At most thirty a second."""
            at.append(loop.time())
            if sum(1 for one in at if one > loop.time() - 1) > 30:
                return await harness.answers(429, {}, Retry_After="1")(request, made, token)
            return made.rotate(token)

        endpoint.faults.extend([limited] * 2000)
        chosen = harness.provider(endpoint.url, refreshers=10)
        async with two(valkey, tmp_path, chosen) as (one, _other):
            await asyncio.gather(*(one.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(100)))

            async def done() -> bool:
                return bool((await one.tokens.stats())["p"]["fresh"] == 100)

            await harness.eventually(done)
    refused = sum(endpoint.requests.values()) - 100
    assert refused <= 90, f"{refused} refused in {loop.time() - begun:.1f} s"
