"""Companion tasks: one for each account and interval, gone when the account is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.manual_clock import ManualClock
from support.providers.scripted_provider import scripted_provider
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden import errors
from tidewarden.config.load import Companion
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.events.companions import Companions, next_time

PAYLOAD = '{"account": "{account}", "p": "{provider}", "n": "{name}"}'


def test_each_account_has_one_time_in_each_interval() -> None:
    times = {next_time(f"p/a{number}", 1_000_000, 10_000) for number in range(2000)}
    assert min(times) > 1_000_000
    assert max(times) <= 1_010_000
    assert len({(moment - 1_000_000) // 1000 for moment in times}) >= 10  # spread over it
    first = next_time("p/a", 1_000_000, 10_000)
    assert next_time("p/a", first - 1, 10_000) == first
    assert next_time("p/a", first, 10_000) == first + 10_000


@pytest.mark.usefixtures("short_lives")
async def test_put_when_fresh_and_dropped_when_dead(valkey: Any, tmp_path: Path) -> None:
    companions = {
        "contacts": Companion("contacts", ("p",), "contacts.sync", 1, PAYLOAD),
        "others": Companion("others", ("q",), "other", 1),
    }
    async with scripted_provider(life_s=2) as endpoint:
        chosen = harness.provider(endpoint.url, margin_s=1.0)
        sections = {"companions": companions}
        async with harness.node(
            valkey, tmp_path, chosen, sections=sections, confirm_s=0.005
        ) as side:
            # for an interval this short
            await side.queues.admin.configure("contacts.sync", {"dedup_ms": 0})
            await side.tokens.put("p/a/b", {"refresh_token": "a/b.0"})
            session = side.queues.open_session()
            for _ in range(2):  # done, and due again after a later refresh
                (task,) = await side.queues.take(session, ["contacts.sync"], wait_ms=10_000)
                assert task.id == "contacts:p/a/b"
                assert json.loads(task.payload) == {"account": "p/a/b", "p": "p", "n": "a/b"}
                token = await side.tokens.get(json.loads(task.payload)["account"])
                assert token.access_token.startswith("secret-access-a/b-")
                await side.queues.ack(session, task.queue, [(task.id, task.lease)])
            # Dead: what is queued is dropped; so it is when the account is deleted.
            await side.tokens.put(
                "p/c", {"refresh_token": "c.0", "access_token": "x", "expires_in": 1}
            )
            await eventually(lambda: endpoint.current.get("c"))
            endpoint.current["c"] = 99

            async def dead() -> bool:
                return (await side.tokens.stats())["p"]["dead"] == 1

            await eventually(dead)
            await side.tokens.delete("p/a/b")

            async def empty() -> bool:
                return (await side.queues.admin.stats("contacts.sync"))["total"] == 0

            await eventually(empty)
            assert "other" not in await side.queues.catalog.names()


async def test_a_queue_that_is_full_holds_up_no_other_and_gets_its_tasks_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, put, full, names = (
        ManualClock(),
        defaultdict[str, set[str]](set),
        True,
        [f"p/a{at}" for at in range(250)],
    )

    async def puts(queue: str, task: TaskSpec) -> str:
        if queue == "full" and full:
            raise errors.Full("the queue full is at its capacity")
        if queue == "odd":
            raise errors.BadArg("no such thing is allowed")
        put[queue].add(task.id)
        return task.id

    async def drop(queue: str, task_id: str) -> int:
        put[queue].discard(task_id)
        return 1

    kinds = {name: Companion(name, (), name, 60) for name in ("full", "odd", "well")}
    companions = Companions(kinds, puts, drop, clock)
    running = asyncio.create_task(companions.run())
    for name in names:
        companions.fresh(name)
    companions.fresh("p/" + "x" * 200)
    await eventually(lambda: len(put["well"]) == 250)
    assert not put["full"]
    full = False
    companions.over("p/a7")

    async def all_are_put() -> bool:
        await clock.advance(1)
        return len(put["full"]) == 249

    await eventually(all_are_put)
    assert put["full"] == {f"full:{name}" for name in names if name != "p/a7"}
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3  # each in a minute once
    assert "companion tasks of odd cannot be put in odd: no such thing is allowed" in said
