"""
A companion that no node has any more leaves no tasks behind, and one that any node has loses none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness

from tidewarden.config.load import Companion
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.events import companion_cleanup
from tidewarden.tokens.events.companion_cleanup import BEAT_S, GONE_S, CompanionCleanup


class Jumping:
    """A clock that stands, but for those who sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep_until(self, deadline: float) -> None:
        self.now = max(self.now, deadline)


async def test_its_tasks_are_ended_when_nobody_has_it(
    valkey: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion_cleanup, "PAGE", 3)
    chosen = harness.provider("http://127.0.0.1:9/token")
    async with harness.node(valkey, tmp_path, chosen, go=False) as side:
        queues, clock = side.queues, Jumping()
        sync = Companion("sync", (), "book.sync", 600)
        some = Companion("some", ("p",), "book.sync", 600)

        def node(*has: Companion) -> CompanionCleanup:
            return CompanionCleanup(
                {one.name: one for one in has}, ("p", "q"), queues, side.link.call, "t", clock
            )

        ours = [f"sync:p/a{number}" for number in range(8)]
        others = ["sync:q/a", "some:p/a", "sync2:p/a", "mine"]
        for number, name in enumerate([*ours, *others]):
            await queues.put("book.sync", TaskSpec(b"x", id=name, delay_ms=600_000 * (number % 2)))
        session = queues.open_session()
        (held,) = await queues.take(session, ["book.sync"], task_id=ours[0])

        async def left() -> set[str]:
            found = set[str]()
            for state in companion_cleanup.STATES:
                tasks, _ = await queues.admin.page("book.sync", state, 100)
                found |= {str(task["id"]) for task in tasks}
            return found

        async def later(*nodes: CompanionCleanup, seconds: float = GONE_S) -> None:
            until = clock.now + seconds
            while clock.now < until:
                clock.now += BEAT_S
                for each in nodes:
                    await each.look()

        first, second = node(sync, some), node(sync, some)
        await later(first, second)
        # One node goes without it: the other has it, and it stays.
        second = node(some)
        await later(first, second, seconds=3 * GONE_S)
        assert len(await left()) == 12
        # The last that had it goes, and comes back in time.
        await later(second, seconds=GONE_S - 2 * BEAT_S)
        await later(first, second, seconds=3 * BEAT_S)
        await later(second, seconds=GONE_S - 2 * BEAT_S)
        assert len(await left()) == 12
        # It goes for good. What somebody works at is left to them, and ended when it comes back to
        # the queue.
        await later(second, node(some), seconds=GONE_S + 3 * BEAT_S)
        assert await left() == {ours[0], *others} - {"sync:q/a"}
        await queues.release(session, "book.sync", held.id, held.lease)
        await later(second, node(some), seconds=3 * GONE_S)
        assert await left() == {"some:p/a", "sync2:p/a", "mine"}
        assert await side.link.call("HLEN", "{t}:companions") == 1


async def test_where_its_queue_has_gone_there_is_nothing_to_do(valkey: Any, tmp_path: Path) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/token"), go=False
    ) as side:
        clock = Jumping()
        await side.link.call("HSET", "{t}:companions", "old\tnowhere\tp", 5)
        watch = CompanionCleanup({}, ("p",), side.queues, side.link.call, "t", clock)
        await watch.look()
        clock.now += GONE_S
        await watch.look()
        assert await side.link.call("HLEN", "{t}:companions") == 0
        assert "nowhere" not in await side.queues.catalog.names()
