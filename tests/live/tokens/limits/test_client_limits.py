"""
Limits of a client on real stores: bucket and record by a frozen clock; two nodes with a small token
endpoint (a double).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.inspect import accounts_of, probing_of, untold_of, version_of
from support.manual_clock import ManualClock
from support.providers.scripted_provider import answers, scripted_provider
from support.tokens import harness

from tidewarden import errors
from tidewarden.clock import SystemClock
from tidewarden.tokens.accounts.account_record import RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.limits.answer_counts import Ended
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.limits.client_record import ClientEvent, ClientRecord, Hold
from tidewarden.tokens.limits.judgement import release
from tidewarden.tokens.limits.node_limits import NodeLimits
from tidewarden.tokens.provider.token_response import Verdict

QUEUE = "_tokens:p:c0"
PROBE_MS = 40_000
REFUSED = Verdict(
    "invalid_client", "client", "HTTP 401 invalid_client", brief="HTTP 401 invalid_client"
)
OK = Verdict("ok", "ok")


class Bench:
    """
    Nodes' limits of one client on a store whose clock, like theirs, stands where the test puts it.
    """

    def __init__(self, queues: Any) -> None:
        self.now_ms = 1_000_000
        self.clock = ManualClock()
        self.calls: Counter[str] = Counter()
        self.away = False
        self.refusing = 0
        self._queues = queues
        self.paused: list[int] = []
        self.accounts = AccountStore(self.script, queues.catalog)

    async def script(self, name: str, queue: str, shard: int, args: Any) -> Any:
        self.calls[f"{name} {args[0]}"] += 1
        if self.away:
            raise errors.StoreDown("away")
        return await self._queues.scripts.run(name, queue, shard, args, now_ms=self.now_ms)

    async def pause(self, _queue: str, ms: int) -> None:
        self.paused.append(ms)

    async def resume(self, _queue: str) -> None:
        if self.refusing:
            self.refusing -= 1
            raise errors.StoreDown("away")
        self.paused.append(0)

    def node(self, name: str, **settings: Any) -> ClientLimits:
        admin: Any = self
        shared = NodeLimits(self.accounts, admin, self.clock, Random(1), name)
        return ClientLimits(
            harness.provider("http://127.0.0.1:9/", **settings), QUEUE, shared, PROBE_MS
        )

    async def pass_s(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        await self.clock.advance(seconds)

    async def grant(self, per_second: float, wanted: int) -> tuple[int, int]:
        granted, wait_ms, *_ = await self.client("ask", 0, wanted, round(1000 * per_second))
        return granted, wait_ms

    async def client(self, *args: str | bytes | int) -> Any:
        return await self.script("tokens.client", QUEUE, 0, args)


@pytest.fixture
async def bench(valkey: Any, tmp_path: Path) -> AsyncIterator[Bench]:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        yield Bench(side.queues)


async def answered(node: ClientLimits, verdict: Verdict, accounts: int, **known: Any) -> None:
    for n in range(accounts):
        node.begin(f"a{n}")
        node.release(Ended(f"a{n}", verdict, **known))
        await node.settled()
        node.end(f"a{n}")


async def test_rates_below_one_a_second_are_granted_one_by_one(bench: Bench) -> None:
    # Microseconds of today are beyond what a double tells to the fraction.
    bench.now_ms = 1_795_359_192_587
    stuck = []
    for thousandths in range(200, 1000, 7):
        bench.now_ms += 60_000
        first = await bench.grant(thousandths / 1000, 16)
        second, wait_ms = await bench.grant(thousandths / 1000, 16)
        bench.now_ms += wait_ms
        third, _ = await bench.grant(thousandths / 1000, 16)
        if (first[0], second, wait_ms > 900, third) != (1, 0, True, 1):
            stuck.append((thousandths, first, second, wait_ms, third))
    assert not stuck


async def test_nothing_is_asked_while_nothing_is_the_matter(bench: Bench) -> None:
    node = bench.node("n0")
    assert (await node.acquire(7)).requests == 7
    assert bench.calls == {"tokens.client ask": 1}
    for _ in range(20):
        await answered(node, OK, 10)
        assert (await node.acquire(7)).requests == 7
        await bench.pass_s(1)
    await harness.eventually(lambda: not untold_of(node).empty)
    assert bench.calls["tokens.client ask"] == 1
    assert bench.calls["tokens.client write"] == 0  # Good answers are told after half a minute.
    await bench.pass_s(15)
    await harness.eventually(lambda: bench.calls["tokens.client write"] == 1)
    await node.close()


async def test_one_node_finds_out_and_all_are_held_and_one_probes(bench: Bench) -> None:
    first, other = bench.node("n0"), bench.node("n1")
    for node in (first, other):
        await node.acquire(1)
    await answered(first, REFUSED, 5)
    assert first.held
    await harness.eventually(lambda: bench.paused)
    assert first.known.closed.is_set()
    assert not other.held
    await answered(other, REFUSED, 1)
    await other.weigh()
    assert other.held
    assert (await other.acquire(3)).requests == 0
    await bench.pass_s(3)
    permits = [await node.acquire(3) for node in (first, other)]
    assert sorted((permit.requests, permit.probe) for permit in permits) == [(0, False), (1, True)]
    prober = (first, other)[permits.index(max(permits, key=lambda permit: permit.requests))]
    probing_of(prober).add("b")
    prober.begin("b")
    prober.release(Ended("b", OK))
    await prober.settled()
    assert not prober.held
    await harness.eventually(lambda: bench.paused[-1] == 0)
    assert (await first.acquire(3)).requests == 3
    for node in (first, other):
        await node.close()


async def test_a_late_resume_does_not_stand_against_anothers_pause(bench: Bench) -> None:
    """
    A node ends a hold and is slow to resume; meanwhile another holds all: the queue is paused in
    the end.
    """
    first, other = bench.node("n0"), bench.node("n1")
    slow = asyncio.Event()

    async def resume(_queue: str) -> None:
        await slow.wait()
        bench.paused.append(0)

    bench.resume = resume  # type: ignore[method-assign]
    await first.acquire(1)
    await answered(first, REFUSED, 5)
    await harness.eventually(lambda: bench.paused)
    await answered(first, OK, 1)
    await first.tell()
    assert not first.held
    await bench.pass_s(31)
    await other.acquire(1)
    await answered(other, REFUSED, 5)
    await other.tell()
    assert other.held
    slow.set()
    await harness.eventually(lambda: 0 in bench.paused and bench.paused[-1] > 0)
    for node in (first, other):
        await node.close()


async def test_who_hears_that_all_go_on_asks_for_a_permit_at_once(bench: Bench) -> None:
    node = bench.node("n0")
    await node.acquire(1)
    await answered(node, REFUSED, 5)
    await node.tell()
    assert node.held
    waiting = asyncio.create_task(node.wait_for_permit(60.0))  # No time passes here.
    await answered(node, OK, 1)
    assert not waiting.done()
    await node.tell()
    assert not node.held
    await harness.eventually(waiting.done)
    await node.close()


LIMITED = Verdict("rate_limited", "provider", "HTTP 429", retry_after_s=50.0, brief="HTTP 429")


async def test_an_operator_ends_at_one_node_what_another_paused_for(bench: Bench) -> None:
    first, other = bench.node("n0"), bench.node("n1")
    for node in (first, other):
        await node.acquire(1)
    await answered(first, LIMITED, 8)
    await first.tell()
    await harness.eventually(lambda: bench.paused)
    bench.refusing = 1
    await other.known.change(release)
    # The store is away for a moment just then.
    await harness.eventually(lambda: not bench.refusing)

    async def resumed() -> bool:
        await bench.pass_s(1)
        return bench.paused[-1] == 0

    await harness.eventually(resumed)
    for node in (first, other):
        await node.close()


async def test_a_hold_in_a_record_that_cannot_be_read_is_forgotten_and_not_for_ever(
    bench: Bench,
) -> None:
    node = bench.node("n0", client_rate=50.0)
    await node.acquire(1)
    await answered(node, REFUSED, 5)
    await node.tell()
    await bench.client("write", version_of(node.known), b"\xc1", 0, bench.now_ms + 1000, 1)
    await bench.pass_s(2)
    assert (await node.acquire(3)).requests == 3
    await harness.eventually(lambda: bench.paused[-1] == 0)
    await node.close()


async def test_a_probe_that_is_not_sent_while_something_is_told_makes_way_soon(
    bench: Bench,
) -> None:
    node, slow, telling = bench.node("n0"), asyncio.Event(), asyncio.Event()
    await node.acquire(1)
    await answered(node, REFUSED, 5)
    await node.tell()
    await bench.pass_s(3)
    assert (await node.acquire(1)).probe
    script = bench.script

    async def late(name: str, queue: str, shard: int, args: Any) -> Any:
        if args[0] == "write":
            telling.set()
            await slow.wait()
        return await script(name, queue, shard, args)

    bench.accounts.script = late
    node.release(Ended("b", Verdict("invalid_grant", "account"), proven=True))

    async def told() -> bool:
        await bench.pass_s(0.3)
        return telling.is_set()

    await harness.eventually(told)
    node.begin("c")
    probing_of(node).add("c")
    node.end("c")
    await asyncio.gather(bench.pass_s(0.1), asyncio.sleep(0.05))  # Its telling finds one under way.
    slow.set()

    async def free() -> bool:
        await bench.pass_s(0.3)
        found = node.known.record.hold
        return found is not None and not found.claim

    await harness.eventually(free, limit_s=10)
    assert bench.now_ms < 1_000_000 + PROBE_MS / 2
    await node.close()


async def test_two_that_tell_at_once_are_both_counted(bench: Bench) -> None:
    nodes = [bench.node(f"n{n}") for n in range(8)]
    for node in nodes:
        await answered(node, OK, 10)
    await asyncio.gather(*(node.tell() for node in nodes))
    await nodes[0].known.look()
    assert sum(bucket.ok for bucket in nodes[0].known.record.buckets) == 80
    for node in nodes:
        await node.close()


async def test_what_the_store_did_not_hear_is_told_later(bench: Bench) -> None:
    node = bench.node("n0")
    await node.acquire(1)
    bench.away = True
    await answered(node, REFUSED, 5)
    assert not node.held
    assert node.assess(REFUSED).shared  # By what this node has met with itself.
    bench.away = False
    await node.tell()
    assert sum(bucket.client for bucket in node.known.record.buckets) == 5
    await node.close()


async def test_a_rate_is_kept_by_all_together(bench: Bench) -> None:
    granted = 0
    for _ in range(100):
        granted += (await bench.grant(20, 50))[0]
        bench.now_ms += 50
    # Twenty a second for five seconds, and the first second's worth at once.
    assert 100 <= granted <= 121
    for _ in range(3):
        found = await bench.grant(0.1, 50)
    assert found[0] == 0
    assert found[1] > 0


@pytest.mark.parametrize(("rate", "granted"), [(0.0, 10), (0.0004, 1), (2.5, 2)])
async def test_a_rate_however_low_is_one(bench: Bench, rate: float, granted: int) -> None:
    node = bench.node("n0", client_rate=rate)
    assert (await node.acquire(10)).requests == granted
    await node.close()


async def test_what_was_not_sent_is_given_back(bench: Bench) -> None:
    assert (await bench.grant(10, 50))[0] == 10
    assert (await bench.grant(10, 50))[0] == 0
    await bench.client("back", 0, 7, 10_000)
    assert (await bench.grant(10, 50))[0] == 7


async def test_a_record_is_written_in_the_place_of_the_one_that_was_read(bench: Bench) -> None:
    first, second = ClientRecord(well_ms=7).pack(), ClientRecord(well_ms=8).pack()
    event = ClientEvent("provider.breaker_closed")
    granted, _, version, *_ = await bench.client("write", 0, first, 0, 0, 0, *event)
    assert (granted, version) == (1, 1)
    granted, _, version, _, _, raw = await bench.client("write", 0, second, 0, 0, 0)
    assert (granted, version, bytes(raw)) == (0, 1, first)
    assert not (await bench.client("ask", 1, 0, 0))[-1]
    assert bytes((await bench.client("ask", 0, 0, 0))[-1]) == first


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_step_of_the_stores_clock_holds_nobody_longer(desk: Any, step_ms: int) -> None:
    for verb in ("ask", "write"):
        desk.client.flushall()
        desk.stamp = ""
        clock = desk.run("tokens.client", "ask", 0, 0, 0)[3]
        desk.run(
            "tokens.client", verb, 0, *((5, 1000) if verb == "ask" else (b"", 0, clock + 500, 0))
        )
        desk.now += step_ms
        desk.stamp = f"~0~1~{step_ms}"
        granted, wait_ms, *_ = desk.run("tokens.client", "ask", 0, 1, 1000)
        assert granted == 0
        assert 0 < wait_ms <= 1000
        desk.now += wait_ms
        assert desk.run("tokens.client", "ask", 0, 1, 1000)[0] == 1


async def test_whoever_can_be_saved_now_alone_probes_each_other_time(
    valkey: Any, tmp_path: Path
) -> None:
    """
    Its grace may last for weeks, and its account fail for good: else those that were well would
    never find out.
    """
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        names = {f"a{n}" for n in range(12)}
        for name in names:
            await side.tokens.put(f"p/{name}", {"refresh_token": f"{name}.0"})
        ledger = accounts_of(side.tokens)
        shared = NodeLimits(ledger, side.queues.admin, ManualClock(), Random(1), "n0")
        node = ClientLimits(harness.provider("http://127.0.0.1:9/"), QUEUE, shared, PROBE_MS)

        async def probe(probes: int, step: Step) -> str:
            node.known.record = ClientRecord(hold=Hold(probes=probes))
            task = await node.take_probe()
            assert task is not None
            await ledger.failed(QUEUE, task.id, task.lease, step)
            return task.id

        until_ms = SystemClock().unix_ms() + 30 * 86_400_000
        again = Step("retry", 0, RefreshTroubles(outcome="unknown", doubts=1), until_ms=until_ms)
        graced = await probe(0, again)
        assert await probe(0, again) == graced
        well = await probe(1, Step("hold", 0, RefreshTroubles()))
        assert well in names - {graced}
        assert await probe(2, again) == graced


# --- two nodes


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
    """
    A wrong secret: whoever meets it pauses the queue for all; when it is right again all go on at
    once.
    """
    caplog.set_level(logging.INFO)
    async with scripted_provider() as endpoint:
        right = asyncio.Event()
        while_wrong = 0

        async def refuse(request: Any, made: Any, token: str) -> Any:
            nonlocal while_wrong
            if right.is_set():
                return made.rotate(token)
            while_wrong += 1
            return await answers(401, {"error": "invalid_client"})(request, made, token)

        endpoint.script = refuse
        chosen = harness.provider(endpoint.url, refreshers=3)
        async with two(valkey, tmp_path, chosen) as (one, other):
            await asyncio.gather(
                *(one.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(60))
            )

            async def paused() -> int:
                return int((await one.queues.admin.stats(QUEUE))["paused_until_ms"])

            await harness.eventually(paused)
            told = (await other.tokens.stats())["p"]  # Any node tells of it.
            assert told["failures"] >= 1
            assert told["held_until_ms"] > 0
            with pytest.raises(
                errors.Timeout, match="all accounts of p wait: invalid_client HTTP 401"
            ):
                await other.tokens.get("p/a59")
            assert while_wrong <= 16
            right.set()

            async def done() -> bool:
                stats = (await one.tokens.stats())["p"]
                return bool(stats["fresh"] >= 40)

            await harness.eventually(done)
            await harness.eventually(lambda: paused_over(one))
            told = {("p", "provider.breaker_open"): 1, ("p", "provider.breaker_closed"): 1}
            await harness.eventually(
                lambda: (
                    Counter(one.tokens.metrics()["events"])
                    + Counter(other.tokens.metrics()["events"])
                    == told
                )
            )
    assert caplog.text.count("refuses our client (invalid_client HTTP 401") == 1
    assert caplog.text.count("its accounts go on") == 1


async def paused_over(side: Any) -> bool:
    return (await side.queues.admin.stats(QUEUE))["paused_until_ms"] == 0


async def test_a_rate_limited_provider_is_asked_less_and_all_are_refreshed(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        loop = asyncio.get_running_loop()
        begun, at = loop.time(), []

        async def limited(request: Any, made: Any, token: str) -> Any:
            """At most thirty a second."""
            at.append(loop.time())
            if sum(1 for one in at if one > loop.time() - 1) > 30:
                return await answers(429, {}, Retry_After="1")(request, made, token)
            return made.rotate(token)

        endpoint.script = limited
        chosen = harness.provider(endpoint.url, refreshers=10)
        async with two(valkey, tmp_path, chosen) as (one, _other):
            await asyncio.gather(
                *(one.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(100))
            )

            async def done() -> bool:
                return bool((await one.tokens.stats())["p"]["fresh"] == 100)

            await harness.eventually(done)
    refused = sum(endpoint.requests.values()) - 100
    assert refused <= 130, f"{refused} refused in {loop.time() - begun:.1f} s"


async def test_a_probe_is_made_by_an_account_that_was_well(valkey: Any, tmp_path: Path) -> None:
    """
    Accounts that always fail are due first; the provider was away: the healthy ones find out that
    it is back.
    """
    async with scripted_provider() as endpoint:
        back = asyncio.Event()

        async def fault(request: Any, made: Any, token: str) -> Any:
            if back.is_set() and not token.startswith("bad"):
                return made.rotate(token)
            return await answers(500, {})(request, made, token)

        endpoint.script = fault
        chosen = harness.provider(endpoint.url, refreshers=8)
        async with harness.node(valkey, tmp_path, chosen) as side:
            await asyncio.gather(
                *(side.tokens.put(f"p/bad{n}", {"refresh_token": f"bad{n}.0"}) for n in range(60))
            )

            async def held() -> bool:
                return bool((await side.tokens.stats())["p"]["failures"])

            await harness.eventually(held)
            await asyncio.gather(
                *(side.tokens.put(f"p/a{n}", {"refresh_token": f"a{n}.0"}) for n in range(60))
            )
            back.set()

            async def fresh() -> bool:
                return bool((await side.tokens.stats())["p"]["fresh"] == 60)

            await harness.eventually(fresh, 240)  # the waits for the provider are real
