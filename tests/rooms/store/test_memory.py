"""Puts are refused before the store itself refuses; what drains it goes on, and it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.errors import Error, Full, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.store.memory import LOOK_S, ClusterMemory, StoreMemory, margin_of

MIB = 1 << 20


@pytest.fixture
async def n0(node: Any) -> AsyncIterator[Any]:
    one = await node("n0")
    yield one
    await one.link.call("CONFIG", "SET", "maxmemory", "0")


async def fill(n0: Any, share: float) -> None:
    """Set the limit so that this share of it is used, and look."""
    memory = n0.queues.catalog.store_memory
    await memory.look(n0.link)
    await n0.link.call("CONFIG", "SET", "maxmemory", int(memory.used_bytes / share))
    await memory.look(n0.link)


def test_full_begins_at_the_margin_and_ends_beyond_it() -> None:
    memory = StoreMemory()
    seen = []
    for used in (94, 95, 97, 94.5, 93.9, 93.7, 94.5, 95):
        memory.heard(int(used * MIB), 100 * MIB)
        seen.append(memory.full)
    assert seen == [False, True, True, True, True, False, False, True]
    assert memory.fills == 2
    assert memory.warning() == "the store's memory is full: 99614720 of 104857600 bytes are used"
    memory.heard(200 * MIB, 0)
    assert (memory.full, memory.warning()) == (False, ""), "no limit"
    assert margin_of(1 << 40) == 256 * MIB


async def test_puts_are_refused_and_all_else_goes_on(n0: Any) -> None:
    queues = n0.queues
    session = queues.open_session()
    for i in range(4):
        await queues.put("q", TaskSpec(id=f"t{i}", payload=b"x"))
    await fill(n0, 0.97)
    assert queues.catalog.store_memory.full
    outcomes: asyncio.Queue[Any] = asyncio.Queue()

    class Receiver:
        def done(self) -> bool:
            return False

        set_result = set_exception = staticmethod(outcomes.put_nowait)

    for attempt in (
        lambda: queues.put("q", TaskSpec(payload=b"new")),
        lambda: queues.put_waiting("q", TaskSpec(payload=b"new"), 10),
        lambda: queues.scripts.run("scheduler.put", "q", 0, []),
        lambda: queues.scripts.run_on(n0.link, "tokens.put", "q", 0, []),
        lambda: queues.scripts.run_on(n0.link, "tokens.detail", "q", 0, []),
    ):
        with pytest.raises(Full, match="memory is full"):
            await attempt()
    assert queues.fast_path.put(b"q", b"new", Receiver())
    assert isinstance(await outcomes.get(), Full)
    assert (await n0.link.call("SET", "{tw}:grows", "1")) is not None, (
        "the store itself has room yet"
    )
    taken = await queues.take(session, ["q"], count=3)
    assert await queues.ack(session, "q", [(task.id, task.lease) for task in taken]) == [1, 1, 1]
    both = await asyncio.gather(
        queues.put("q", TaskSpec(payload=b"new")),
        queues.take(session, ["q"]),
        return_exceptions=True,
    )
    assert isinstance(both[0], Full)
    assert [task.id for task in both[1]] == ["t3"], "a put that is refused takes nothing along"
    assert queues.catalog.store_memory.stats()["store_full_refused_total"] == 7
    await fill(n0, 0.5)
    assert await queues.put("q", TaskSpec(id="new")) == "new"


async def test_it_looks_on_also_when_the_store_does_not_tell(
    n0: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock, memory = ManualClock(), StoreMemory()

    class Mute:
        calls = 0

        async def call(self, *_words: str) -> bytes:
            self.calls += 1
            if self.calls < 3:
                raise Error("unknown command 'INFO'")
            return b"used_memory:99\r\nmaxmemory:100\r\n"

    job = asyncio.create_task(memory.run(Mute(), clock))  # type: ignore[arg-type]
    for _ in range(4):
        await clock.advance(LOOK_S)
    job.cancel()
    assert memory.full
    assert caplog.text.count("does not tell how full it is") == 1


class Part:
    """A link to one primary, which says how full it is, or is away."""

    up = True

    def __init__(self, at: str, used: int | None) -> None:
        self.at = at
        self._used = used

    async def call(self, *_: str) -> bytes:
        if self._used is None:
            raise StoreDown("it is away")
        return f"used_memory:{self._used}\r\nmaxmemory:{100 * MIB}\r\n".encode()


async def test_a_primary_that_is_away_hides_no_other_that_is_full() -> None:
    parts = [Part("a:1", None), Part("b:1", 99 * MIB)]
    memory = ClusterMemory()

    class Route:
        def each(self) -> list[Part]:
            return parts

        def link_of(self, key: str) -> Part:
            return parts[key == "b"]

    route: Any = Route()
    with pytest.raises(StoreDown):
        await memory.look(route)
    assert memory.full
    with pytest.raises(Full, match="b:1"):
        memory.check("b")
    memory.check("a")
