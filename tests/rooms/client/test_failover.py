"""
What the SDK repeats, where, and how long: over connections that break, nodes that go, nodes that
freeze.
"""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

import hiredis
import pytest
from support.doors.client_harness import Site, site, url
from support.inspect import answer_within, clock_of, keeper_of, pause_line
from support.store.proxy import Proxy

from benchmarks.ports import free_ports
from tidewarden.client import AsyncClient, NewTask
from tidewarden.client.connection import pack
from tidewarden.client.failover import FailoverConnection, PendingCall, only
from tidewarden.clock import SystemClock
from tidewarden.errors import Draining, NoQuorum, NotHeld, StoreDown, Unreachable

NODES = 2


async def caught(proxy: Proxy, trap: Any) -> None:
    """
    Wait until the trap holds an answer, then cut every connection through the proxy: the answer is
    lost.
    """
    await asyncio.to_thread(trap.wait)
    await asyncio.to_thread(lambda: proxy.cut(reset=False))
    trap.release()


@pytest.mark.parametrize(("direction", "reset"), [("up", False), ("up", True), ("down", False)])
async def test_a_put_whose_connection_is_cut_puts_one_task(
    here: Site, direction: Any, reset: bool
) -> None:
    """
    Held upwards and ended by FIN, the request never arrives; in the other cases it does, and its
    answer is lost.
    """
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        queue = client.queue("mail")
        await queue.put("first")
        trap = proxy.trap(b"Q.PUT" if direction == "up" else b"\r\nthe-task\r\n", direction)
        putting = asyncio.ensure_future(queue.put("second", id="the-task"))
        await asyncio.to_thread(trap.wait)
        await asyncio.to_thread(lambda: proxy.cut(reset=reset))
        trap.release()
        assert await asyncio.wait_for(putting, 30) == "the-task"
        stats = await queue.stats()
        assert (stats["ready"], stats["count_put"]) == (2, 2)


async def test_a_batch_is_repeated_as_one_and_stays_whole(here: Site) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        queue = client.queue("mail")
        trap = proxy.trap(b"\r\nt250\r\n", "down")
        putting = asyncio.ensure_future(
            queue.put_many([NewTask(b"x", f"t{n}") for n in range(700)])
        )
        await caught(proxy, trap)
        assert await asyncio.wait_for(putting, 30) == [f"t{n}" for n in range(700)]
        assert (await queue.stats())["total"] == 700


@pytest.mark.parametrize("verb", ["ack", "release", "fail", "bury"])
async def test_settling_again_after_a_lost_answer_is_no_error(here: Site, verb: str) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        task = await queue.take()
        assert task is not None
        trap = proxy.trap(b"+OK\r\n", "down")
        settling = asyncio.ensure_future(getattr(task, verb)())
        await caught(proxy, trap)
        await asyncio.wait_for(settling, 30)
        assert task.settled
        with pytest.raises(NotHeld):
            await task.bury()


async def test_what_counts_is_not_repeated(here: Site) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        async with await queue.take() as task:  # type: ignore[union-attr]
            await task.bury()
        trap = proxy.trap(b":1\r\n", "down")
        kicking = asyncio.ensure_future(queue.kick(10))
        await caught(proxy, trap)
        with pytest.raises(Unreachable, match="may or may not have happened"):
            await asyncio.wait_for(kicking, 30)
        # it did, here; and the client itself goes on
        assert (await queue.peek("a")).state == "ready"


async def test_a_node_that_freezes_is_left(here: Site) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        answer_within(client.line, 0.3)
        trap = proxy.trap(b"Q.STATS")
        assert (await asyncio.wait_for(queue.stats(), 30))["ready"] == 1
        assert trap.caught.is_set()


async def test_a_node_that_goes_down_is_left(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        await queue.delete("a")
        waiting = asyncio.ensure_future(queue.take(wait_ms=20_000))
        while here.doors[0].server.context.waiting == 0:
            await asyncio.sleep(0.005)
        await here.doors[0].server.stop(0)
        while here.doors[1].server.context.waiting == 0:
            await asyncio.sleep(0.005)
        await queue.put("y")
        task = await asyncio.wait_for(waiting, 20)
        assert task is not None
        assert task.payload == b"y"


async def test_nobody_there() -> None:
    first = free_ports(2)
    urls = [url(port) for port in (first, first + 1)]
    async with AsyncClient(urls, retry_s=0.3, spread=False) as client:
        with pytest.raises(Unreachable, match=r"could be used within 0\.3 s; last: redis://127"):
            await client.queue("mail").put("x")


async def test_a_client_waits_for_a_node_that_is_still_to_come(node: Any) -> None:
    async with site(node) as late:
        proxy = late.proxied()
        await asyncio.to_thread(proxy.close)
        async with AsyncClient(url(proxy.port)) as client:
            putting = asyncio.ensure_future(client.queue("mail").put("x", id="a"))
            await asyncio.sleep(0.2)
            assert not putting.done()
            again = await asyncio.to_thread(_at, late.doors[0].port, proxy.port)
            late.proxies.append(again)
            assert await asyncio.wait_for(putting, 20) == "a"


def _at(target: int, port: int) -> Proxy:
    """A proxy at a port that was another's."""
    real = socket.create_server
    try:
        socket.create_server = lambda _, **options: real(("127.0.0.1", port), **options)
        return Proxy(target)
    finally:
        socket.create_server = real


async def test_a_closed_client_ends_what_is_under_way(here: Site) -> None:
    client = AsyncClient(here.urls, retry_s=5, spread=False)
    waiting = asyncio.ensure_future(client.queue("mail").take(wait_ms=20_000))
    while here.doors[0].server.context.waiting == 0:
        await asyncio.sleep(0.005)
    await client.close()
    with pytest.raises(Unreachable, match="closed"):
        await asyncio.wait_for(waiting, 20)
    with pytest.raises(Unreachable, match="closed"):
        await client.queue("mail").put("x")


@pytest.mark.thorough
async def test_a_line_that_holds_leases_reconnects_unasked(here: Site, eventually: Any) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        await client.queue("mail").put("x", id="a")
        async with await client.queue("mail").take() as task:  # type: ignore[union-attr]
            await asyncio.to_thread(proxy.cut)
            await eventually(
                lambda: client.line.up and client.nodes.current().port == here.doors[1].port
            )
            assert not task.lost
        await eventually(lambda: keeper_of(client.line) is None)


async def test_a_line_that_holds_leases_notices_a_silent_node(
    here: Site, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("tidewarden.client.failover.HEARTBEAT_S", 0.05)
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), *here.urls[1:]], spread=False) as client:
        await client.queue("mail").put("x", id="a")
        async with await client.queue("mail").take():  # type: ignore[union-attr]
            trap = proxy.trap(b"PONG", "down")
            monkeypatch.setattr("tidewarden.client.failover.ALIVE_S", 0.3)
            await eventually(trap.caught.is_set)
            await eventually(
                lambda: client.line.up and client.nodes.current().port == here.doors[1].port
            )


# What of a piece is sent again: decided without a connection.


def replies(*texts: Any) -> list[Any]:
    return [hiredis.ReplyError(text) if isinstance(text, str) else text for text in texts]


def test_only_what_met_a_passing_fault_is_sent_again() -> None:
    asked = PendingCall([pack("A"), pack("B"), pack("C")], True)
    fault = asked.answered(replies(1, "STOREDOWN it is away", "NOTHELD x"))
    assert isinstance(fault, StoreDown)
    assert asked.packed == [pack("B")]
    assert asked.repeated
    assert asked.answered(replies(2)) is None
    first, second, third = asked.answers
    assert (first, second) == (1, 2)
    assert isinstance(third, NotHeld)


def test_what_may_have_happened_is_not_sent_again_unless_it_may() -> None:
    asked = PendingCall([pack("A")], False)
    assert asked.answered(replies("NOQUORUM in time")) is None
    assert isinstance(asked.answers[0], NoQuorum)
    asked = PendingCall([pack("A")], False)
    # surely did nothing
    assert isinstance(asked.answered(replies("DRAINING going down")), Draining)
    assert not asked.repeated


def test_only_raises_what_it_is() -> None:
    assert only(([5], True)) == (5, True)
    with pytest.raises(NotHeld):
        only(([NotHeld("no")], False))


async def test_pauses_grow_and_stay_within_the_limit() -> None:
    slept: list[float] = []

    class Clock(SystemClock):
        async def sleep_until(self, until: float) -> None:
            slept.append(until - self.monotonic())

    line = FailoverConnection(None, Clock(), random.Random(1), retry_s=30, answer_s=1)  # type: ignore[arg-type]
    for _ in range(10):
        await pause_line(line, clock_of(line).monotonic() + 100)
    assert max(slept) <= 1.0
    assert 0.02 < slept[0] <= 0.05
    assert 0.5 <= slept[-1] + 0.001 <= 1.001
    await pause_line(line, clock_of(line).monotonic() + 0.01)
    assert slept[-1] <= 0.01
