"""Takes that wait go along with puts, and what becomes of them; at random: nobody is forgotten."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.inspect import parked_in, shards_of
from support.queues.parked_takes import LONG_MS, Asked, Lost, lose, many, parked, wait_in

from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.sessions import lost_takes
from tidewarden.queue.shards import known_empty
from tidewarden.queue.shards.reply_durability import DurabilityGate
from tidewarden.store import Scripts


@pytest.mark.parametrize("count", [1, 50])
async def test_a_put_takes_who_waits_along_in_its_own_call(
    node: Any, eventually: Any, asked_of: Asked, count: int
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    takes = await many(eventually, n0, count)
    await wait_in(eventually, n1)
    asked_of.clear()
    for number in range(min(count, 5)):
        await n0.queues.put("q", TaskSpec(id=f"a{number}"))
        assert [task.id for task in await takes[number]] == [f"a{number}"], "the oldest waiter"
        assert (asked_of.calls(n0), asked_of.takes(n0)) == (number + 1, number + 1)
    await n1.ears.call("PING")
    assert asked_of.calls(n1) == 0, "nobody else was told"
    assert (await n0.link.call("HGET", "{tw:q:0}:shard", "waiting")).split() == [b"n0.1", b"n1.1"]
    n0.queues.end_waits()
    n1.queues.end_waits()


async def test_puts_of_one_turn_take_as_many_along(
    node: Any, eventually: Any, asked_of: Asked
) -> None:
    n0 = await node("n0")
    takes = await many(eventually, n0, 50)
    asked_of.clear()
    await asyncio.gather(
        *(n0.queues.put("q", TaskSpec(id=f"t{number:02}")) for number in range(20))
    )
    assert [task.id for take in takes[:20] for task in await take] == [
        f"t{number:02}" for number in range(20)
    ]
    assert (asked_of.calls(n0), asked_of.takes(n0)) == (1, 20)
    assert len(parked_in(n0.queues, "q")) == 30
    n0.queues.end_waits()


async def test_puts_of_later_tasks_take_nobody_along(
    node: Any, eventually: Any, asked_of: Asked
) -> None:
    n0 = await node("n0")
    takes = await many(eventually, n0, 5)
    asked_of.clear()
    await n0.queues.put("q", TaskSpec(id="a", delay_ms=40))
    assert (asked_of.calls(n0), asked_of.takes(n0)) == (1, 0)
    assert [task.id for task in await takes[0]] == ["a"]
    assert asked_of.takes(n0) <= 3, "one at its time; a timer may be early"
    n0.queues.end_waits()


async def test_puts_into_a_paused_queue_take_somebody_along_once(
    node: Any, eventually: Any, asked_of: Asked
) -> None:
    n0 = await node("n0")
    await n0.queues.admin.pause("q")
    takes = await many(eventually, n0, 5)
    asked_of.clear()
    for number in range(10):
        await n0.queues.put("q", TaskSpec(id=f"a{number}"))
    assert (asked_of.calls(n0), asked_of.takes(n0)) == (10, 1)
    await n0.queues.admin.resume("q")
    assert [task.id for take in takes for task in await take] == [
        f"a{number}" for number in range(5)
    ]


@pytest.mark.parametrize("count", [1, 50])
async def test_where_the_answer_of_a_put_is_lost_who_went_along_waits_on(
    node: Any, eventually: Any, monkeypatch: Any, count: int
) -> None:
    """The script has run: it has leased the task to a take that never hears of it."""
    n0 = await node("n0")
    takes = await many(eventually, n0, count)
    lose(monkeypatch, n0, {"queue.batch"})
    with pytest.raises(StoreDown):
        await n0.queues.put("q", TaskSpec(id="a"))
    assert len(parked_in(n0.queues, "q")) == count
    found = await asyncio.wait_for(takes[0], 20)
    assert [(task.id, task.attempt) for task in found] == [("a", 1)]
    n0.queues.end_waits()


async def test_a_durability_that_cannot_be_had_ends_no_take_that_went_along(
    node: Any, eventually: Any
) -> None:
    n0 = await node("n0")
    takes = await many(eventually, n0, 3)
    (shard,) = shards_of(n0.queues, "q")
    refusing = True

    class Refusing(DurabilityGate):
        def pending(self, *about: Any) -> Any:
            if refusing:
                raise NoQuorum("no replica")
            return super().pending(*about)

    shard.gate = Refusing()
    with pytest.raises(NoQuorum):
        await n0.queues.put("q", TaskSpec(id="a"))
    assert not any(take.done() for take in takes)
    refusing = False
    await n0.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await takes[0]] == ["a"]
    n0.queues.end_waits()


async def test_a_consumer_that_goes_while_its_take_goes_along(node: Any, eventually: Any) -> None:
    n0 = await node("n0")
    first, second = await many(eventually, n0, 2)
    put = n0.queues.put("q", TaskSpec(id="a", attempts=1))
    await asyncio.sleep(0)  # sent
    first.cancel()
    await put
    assert [(task.id, task.attempt) for task in await second] == [("a", 1)], (
        "handed back, and not counted"
    )


@pytest.mark.parametrize("end", ["drain", "time"])
async def test_a_wait_that_ends_while_its_take_goes_along(
    node: Any, eventually: Any, end: str
) -> None:
    """What it gets is its consumer's: the answer was under way."""
    n0 = await node("n0")
    _, take = await wait_in(eventually, n0)
    put = n0.queues.put("q", TaskSpec(id="a"))
    await asyncio.sleep(0)  # sent
    if end == "drain":
        n0.queues.end_waits()
    else:
        (waiting,) = n0.queues.consumer.under_way.takes
        waiting.stop_waiting()
    assert not take.done()
    assert [task.id for task in await take] == ["a"]
    await put


async def test_a_lease_is_as_long_as_the_take_said_and_its_sessions(
    node: Any, eventually: Any
) -> None:
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="first"))
    (first,) = await n0.queues.take(n0.queues.open_session(), ["q"])
    own, shared = n0.queues.open_session(), n0.queues.open_session()
    uuid = await n0.queues.join_session(shared, "default")
    brief = n0.queues.take(own, ["q"], wait_ms=LONG_MS)
    await parked(eventually, n0.queues, 1)
    lasting = n0.queues.take(shared, ["q"], wait_ms=LONG_MS, lease_ms=3_600_000)
    await parked(eventually, n0.queues, 2)
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=name)) for name in "ab"))
    (a,), (b,) = await brief, await lasting
    assert (a.id, b.id) == ("a", "b")
    assert b.lease_end_ms - a.lease_end_ms > 3_500_000 > a.lease_end_ms - first.lease_end_ms
    other = n0.queues.open_session()
    await n0.queues.join_session(other, "default", uuid)
    await n0.queues.close_session(shared)
    assert await n0.queues.ack(other, "q", [("b", b.lease)]) == [1], "the session has it still"


async def test_who_goes_along_gets_what_is_first_in_the_queues_order(
    node: Any, eventually: Any
) -> None:
    n0 = await node("n0")
    takes = await many(eventually, n0, 3)
    ranks = {"late": 60, "soon": 50, "first": 10}
    await asyncio.gather(
        *(n0.queues.put("q", TaskSpec(id=name, priority=rank)) for name, rank in ranks.items())
    )
    assert [task.id for take in takes for task in await take] == ["first", "soon", "late"]


async def test_of_one_lane_no_more_go_along_than_may_run(node: Any, eventually: Any) -> None:
    n0 = await node("n0")
    await n0.queues.catalog.shard_count("q")
    session = n0.queues.open_session()
    takes = [n0.queues.take(session, ["q"], wait_ms=LONG_MS) for _ in range(3)]
    await parked(eventually, n0.queues, 3)
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=name, lane="l")) for name in "ab"))
    (a,) = await takes[0]
    assert (a.id, takes[1].done()) == ("a", False)
    assert await n0.queues.ack(session, "q", [("a", a.lease)]) == [1]
    assert [task.id for task in await takes[1]] == ["b"]
    n0.queues.end_waits()


async def test_who_takes_several_gets_all_that_is_put(
    node: Any, eventually: Any, asked_of: Asked
) -> None:
    n0 = await node("n0")
    first, second = await many(eventually, n0, 2, count=5)
    asked_of.clear()
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=f"t{number}")) for number in range(6)))
    assert [[task.id for task in await take] for take in (first, second)] == [
        [f"t{n}" for n in range(5)],
        ["t5"],
    ]
    assert (asked_of.calls(n0), asked_of.takes(n0)) == (1, 2)


async def test_a_queue_that_another_node_cut_anew(node: Any, eventually: Any) -> None:
    """The put is repeated in the new shards; who went along is told to ask again, there."""
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n1)
    await n1.ears.stop()
    await n0.queues.admin.configure("q", {"shards": 2})
    assert await n1.queues.put("q", TaskSpec(id="a")) == "a"
    assert await take == []
    assert [
        task.id for task in await n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS)
    ] == ["a"]


@pytest.mark.parametrize("plain", [False, True])
async def test_where_somebody_found_nothing_the_next_one_waits_without_asking(
    node: Any, eventually: Any, asked_of: Asked, plain: bool
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, first = await wait_in(eventually, n0)
    loop = asyncio.get_running_loop()

    async def one_more() -> Any:
        count = len(parked_in(n0.queues, "q"))
        took: Any = loop.create_future()
        if plain:
            n0.queues.fast_path.take(n0.queues.open_session(), b"q", LONG_MS, took)
        else:
            took = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
        await parked(eventually, n0.queues, count + 1)
        return took

    await n1.queues.catalog.shard_count("q")
    asked_of.clear()
    others = [await one_more() for _ in range(10)]
    assert asked_of.calls(n0) == 0
    await n1.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await first] == ["a"], "in the order in which they came"
    await one_more()
    assert asked_of.calls(n0) == 2, (
        "this one, and who was woken: since then something may have become ready"
    )
    await one_more()
    assert asked_of.calls(n0) == 2
    await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=f"b{number}")) for number in range(10)))
    async with asyncio.timeout(20):
        found = await asyncio.gather(*others)
    names = [took[0].id for took in found]
    assert names == [f"b{number}" for number in range(10)]
    n0.queues.end_waits()


async def test_it_asks_all_the_same_when_that_was_long_ago_or_the_store_was_away(
    node: Any, eventually: Any, asked_of: Asked, monkeypatch: Any
) -> None:
    n0 = await node("n0")
    await wait_in(eventually, n0)
    (shard,) = shards_of(n0.queues, "q")
    assert shard.known_empty.holds(shard)
    shard.missed()
    assert not shard.known_empty.holds(shard)
    monkeypatch.setattr(known_empty, "BARE_S", 0.0)
    asked_of.clear()
    n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    await parked(eventually, n0.queues, 2)
    n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    await parked(eventually, n0.queues, 3)
    assert asked_of.takes(n0) >= 2
    n0.queues.end_waits()


async def test_the_other_node_gets_its_turn_though_this_one_always_waits(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, other = await wait_in(eventually, n1)
    await many(eventually, n0, 1)
    (shard,) = shards_of(n0.queues, "q")
    for number in range(400):
        n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
        await parked(eventually, n0.queues, 2)
        await n0.queues.put("q", TaskSpec(id=f"a{number}"))
        await eventually(lambda: other.done() or len(shard.parked) == 1)
        if other.done():
            break
    assert other.done()
    n0.queues.end_waits()


@pytest.mark.parametrize("lane", ["", "@{}"])
def test_each_eighth_time_a_put_leaves_its_task_to_all_who_wait(desk: Any, lane: str) -> None:
    desk.take(wait=True, holder="n1.1")
    for turn in range(1, 17):
        name = f"a{turn}"
        options = f"0 0 0 0 50 0 0 0 1 keep{lane.format(turn)}" if lane else ""
        _, (rows,) = desk.run(
            "queue.batch", "put", 3, name, options, b"", "take", 5, 200, 1, 0, "3", ""
        )
        if turn % 8:
            assert [row[0] for row in rows] == [name.encode()]
            assert (desk.woke, desk.record("waiting")) == (False, f"n1.1 {desk.holder}")
        else:
            assert rows == []
            assert (desk.woke, desk.record("waiting")) == (False, ""), "all are told by messages"
            assert len(desk.run("queue.take", 200, 1, 0, "3", "", holder="n1.1")[0]) == 1
            assert desk.record("waiting") == "n1.1"


def test_who_does_not_wait_never_leaves_anything(desk: Any) -> None:
    desk.take(wait=True, holder="n1.1")
    for turn in range(16):
        _, (rows,) = desk.run(
            "queue.batch", "put", 3, f"a{turn}", "", b"", "take", 5, 200, 1, 0, "0", ""
        )
        assert len(rows) == 1


class Storm:
    """
    Takes, puts, cancellations, lost answers and pauses at random on two nodes; the oldest who wait
    have everything in the end.
    """

    def __init__(self, seed: int, nodes: list[Any], queues: list[str]) -> None:
        self.dice = random.Random(seed)
        self.nodes = nodes
        self.queues = queues
        self.takes: list[asyncio.Future[Any]] = []
        self.puts: list[asyncio.Future[Any]] = []
        self.number = 0
        self.losing = 0.0

    def lose_some(self, monkeypatch: Any) -> None:
        """Now and then an answer is lost, or the request."""
        send = Scripts.send

        def losing(
            scripts: Scripts, link: Any, name: str, keys: Any, args: Any, receiver: Any
        ) -> None:
            if (
                name in ("queue.put", "queue.take", "queue.batch")
                and self.dice.random() < self.losing
            ):
                if self.dice.random() < 0.3:
                    asyncio.get_running_loop().call_soon(
                        receiver.set_exception, StoreDown("the request was lost")
                    )
                    return
                receiver = Lost(receiver)
            send(scripts, link, name, keys, args, receiver)

        monkeypatch.setattr(Scripts, "send", losing)

    async def step(self) -> None:
        """One thing happens."""
        n, dice = self.dice.choice(self.nodes), self.dice
        what = dice.random()
        if what < 0.4:
            queues = dice.sample(self.queues, dice.randint(1, len(self.queues)))
            named = f"t{self.number + dice.randint(0, 3)}" if dice.random() < 0.1 else ""
            count = dice.choice([1, 1, 1, 2, 5])
            session = n.queues.open_session()
            take = n.queues.take(session, queues, count=count, wait_ms=LONG_MS, task_id=named)
            take.named, take.of = named, queues
            self.takes.append(take)
        elif what < 0.75:
            for _ in range(dice.choice([1, 1, 1, 2, 10])):
                delay = dice.choice([0, 0, 0, 0, 5])
                task = TaskSpec(
                    id=f"t{self.number}", priority=dice.choice([50, 50, 10]), delay_ms=delay
                )
                self.puts.append(n.queues.put(dice.choice(self.queues), task))
                self.number += 1
        elif what < 0.8 and self.takes:
            dice.choice(self.takes).cancel()
        elif what < 0.83:
            queue = dice.choice(self.queues)
            await n.queues.admin.pause(queue)
            await n.queues.admin.resume(queue)
        for _ in range(dice.choice([0, 0, 1, 2, 5])):
            await asyncio.sleep(0)


@pytest.mark.parametrize("losing", [0.0, 0.05])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 40))]
)
async def test_nobody_is_forgotten_and_nothing_is_lost(
    node: Any, eventually: Any, monkeypatch: Any, seed: int, losing: float
) -> None:
    monkeypatch.setattr(lost_takes, "AGAIN_S", 0.1)
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 1 + seed % 2 * 2, "lease_ms": 3_600_000})
    await n0.queues.admin.configure("p", {"lease_ms": 3_600_000})
    for n in (n0, n1):
        await n.queues.catalog.shard_count("p")
        await eventually(lambda n=n: len(shards_of(n.queues, "q")) == 1 + seed % 2 * 2)
    storm = Storm(seed, [n0, n1], ["q", "p"])
    storm.lose_some(monkeypatch)
    storm.losing = losing
    for _ in range(200):
        await storm.step()
    storm.losing = 0.0
    await asyncio.gather(*storm.puts, return_exceptions=True)

    def waiting(queue: str = "") -> list[Any]:
        return [
            take
            for take in storm.takes
            if not take.done() and not take.named and (not queue or queue in take.of)
        ]

    # Whoever waits gets what is there.
    async with asyncio.timeout(20):
        for queue in storm.queues:
            while waiting(queue) and (await n0.queues.admin.stats(queue))["ready"]:
                await asyncio.sleep(0.02)
    # And with tasks enough, put on either node, nobody is left at all. Who wants several may have
    # several of them.
    number = 0
    while left := waiting():
        number += 1
        queue = left[0].of[0]
        await storm.nodes[number % 2].queues.put(queue, TaskSpec(id=f"last-{number}"))
        try:
            async with asyncio.timeout(20):
                while len(waiting()) == len(left):
                    await asyncio.sleep(0.005)
        except TimeoutError:
            lying = {queue: await n0.queues.admin.stats(queue) for queue in storm.queues}
            pytest.fail(
                f"{len(left)} wait, the first for {left[0].of}, and a task was put to {queue}:"
                f" {lying}"
            )
    got = [
        task.id
        for take in storm.takes
        if take.done() and not take.cancelled()
        for task in take.result()
    ]
    assert len(got) == len(set(got)), "each was handed out once"
    for n in storm.nodes:
        n.queues.end_waits()
