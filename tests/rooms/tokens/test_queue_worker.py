"""Tasks of the system's own queues: some at a time, and given back at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness
from support.tokens.harness import eventually

from tidewarden.errors import StoreDown
from tidewarden.queue import Taken
from tidewarden.queue.task import TaskSpec
from tidewarden.tokens.events.queue_worker import QueueWorker


@pytest.mark.thorough
async def test_so_many_at_a_time_and_the_rest_is_given_back(
    valkey: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tidewarden.tokens.events.queue_worker.STOP_S", 0.1)
    chosen = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, tmp_path, chosen, go=False) as side:
        worker = QueueWorker(
            side.queues, "_work", harness.SystemClock(), at_once=2, lease_ms=30_000
        )
        begun: list[str] = []
        may_end = asyncio.Event()

        async def do(task: Taken) -> None:
            begun.append(task.id)
            await may_end.wait()
            await side.queues.ack(worker.session, "_work", [(task.id, task.lease)])
            may_end.clear()

        for name in "abcd":
            await side.queues.put("_work", TaskSpec(id=name))
        running = asyncio.create_task(worker.run(do))
        await eventually(lambda: len(begun) == 2)
        assert (await side.queues.admin.stats("_work"))["leased"] == 2
        may_end.set()  # One or both end, and others take their places.
        await eventually(lambda: len(begun) > 2)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        stats = await side.queues.admin.stats("_work")
        assert (stats["leased"], stats["ready"]) == (0, stats["total"])
        assert stats["total"] >= 2


async def test_one_that_fails_for_a_reason_of_ours_is_logged_and_done_again(
    valkey: Any, tmp_path: Path, caplog: Any
) -> None:
    chosen = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, tmp_path, chosen, go=False) as side:
        worker = QueueWorker(
            side.queues, "_work", harness.SystemClock(), at_once=5000, lease_ms=100
        )
        tries = 0

        async def do(task: Taken) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError("a payload that nobody writes")
            await side.queues.ack(worker.session, "_work", [(task.id, task.lease)])

        await side.queues.put("_work", TaskSpec(id="a"))
        running = asyncio.create_task(worker.run(do))
        await eventually(lambda: tries > 1)
        assert "_work: a failed for a reason of ours" in caplog.text
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_what_fails_is_said_and_holds_up_nothing(
    valkey: Any, tmp_path: Path, caplog: Any
) -> None:
    async with harness.node(
        valkey, tmp_path, harness.provider("http://127.0.0.1:9/"), go=False
    ) as side:
        worker = QueueWorker(
            side.queues, "_work", harness.SystemClock(), at_once=1, lease_ms=30_000
        )

        async def do(task: Taken) -> None:
            if task.id == "odd":
                raise ValueError("no such thing")
            if task.id == "away":
                raise StoreDown("not now")
            await side.queues.ack(worker.session, "_work", [(task.id, task.lease)])

        for name in ("odd", "away", "well"):
            await side.queues.put("_work", TaskSpec(id=name))
        running = asyncio.create_task(worker.run(do))

        async def done() -> bool:
            return (await side.queues.admin.stats("_work"))["total"] == 2

        await eventually(done)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert (await side.queues.admin.stats("_work"))["leased"] == 0
    assert {
        record.getMessage()
        for record in caplog.records
        if record.name == "tidewarden.tokens" and record.levelno >= logging.WARNING
    } == {
        "_work: odd failed for a reason of ours; it is done again",
        "_work: away waits: STOREDOWN not now",
    }
