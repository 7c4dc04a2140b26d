"""The schedules that a worker declares: put as it starts, whatever other workers do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.doors.client_harness import Site

from tidewarden.client import AsyncClient, AsyncTask, Worker, schedules
from tidewarden.errors import BadArg, Denied, Error, Exists, Full, NoQuorum
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.trigger import Spec


async def serve(worker: Worker, here: Site) -> int:
    worker.urls = here.urls[:1]
    return await worker.serve()


def puts(here: Site) -> list[tuple[Any, ...]]:
    """What the schedules of the node that is used were asked to put."""
    calls = here.doors[0].schedules.calls
    return [call[1:] for call in calls if call[0] == "put"]


def refusing(here: Site, monkeypatch: pytest.MonkeyPatch, **errors: list[Error]) -> None:
    """Have puts of these names fail so often, in this order."""
    put = here.doors[0].schedules.put

    async def refused(name: str, spec: Spec, queue: str, task: TaskSpec) -> int:
        if errors.get(name):
            raise errors[name].pop(0)
        next_ms: int = await put(name, spec, queue, task)
        return next_ms

    monkeypatch.setattr(here.doors[0].schedules, "put", refused)


async def test_it_is_put_at_the_start_and_its_tasks_run(
    here: Site, client: AsyncClient, eventually: Any
) -> None:
    worker = Worker()
    ran: list[str] = []

    @worker.schedule(cron="30 2 * * *", zone="Europe/Berlin", catchup="none", within_ms=5)
    async def nightly(task: AsyncTask) -> None:
        ran.append(task.text)

    @worker.schedule("pulse", every_ms=60_000, queue="probes", payload="ping", priority=7)
    @worker.schedule("second", every_ms=90_000, queue="probes", payload="pong")
    @worker.task("probes", lease_ms=10_000)
    async def probe(task: AsyncTask) -> None:
        ran.append(task.text)

    assert worker.handlers["probes"].lease_ms == 10_000
    serving = asyncio.ensure_future(serve(worker, here))
    await eventually(lambda: len(puts(here)) == 3)
    assert sorted(puts(here)) == [
        (
            "nightly",
            Spec.cron("30 2 * * *", "Europe/Berlin", "none"),
            "nightly",
            TaskSpec(b"", within_ms=5),
        ),
        ("pulse", Spec.every(60_000), "probes", TaskSpec(b"ping", priority=7)),
        ("second", Spec.every(90_000), "probes", TaskSpec(b"pong")),
    ]
    await client.queue("nightly").put("a tick")  # as the leader would
    await client.queue("probes").put("ping")
    await eventually(lambda: sorted(ran) == ["a tick", "ping"])
    worker.stop()
    assert await asyncio.wait_for(serving, 30) == 0
    assert not any(call[0] == "delete" for call in here.doors[0].schedules.calls)


async def test_what_may_not_be_declared() -> None:
    worker = Worker()

    async def function(task: AsyncTask) -> None:
        """A handler."""

    async def other(task: AsyncTask) -> None:
        """Another one."""

    worker.schedule("a", every_ms=1_000, queue="q")(function)
    with pytest.raises(BadArg, match="a is declared twice"):
        worker.schedule("a", every_ms=2_000, queue="r")(function)
    with pytest.raises(BadArg, match="handler already"):
        worker.schedule("b", every_ms=1_000, queue="q")(other)
    for trigger in ({}, {"cron": "@daily", "every_ms": 5}):
        with pytest.raises(BadArg, match="c needs one of cron and every_ms"):
            worker.schedule("c", **trigger)(function)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload"):
        worker.schedule("d", every_ms=5, payload={})(function)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Denied("S.PUT needs the right schedule:nightly, which the user ada does not have."),
         "needs the right schedule:nightly"),
        (Exists("schedule 'nightly' lies in queue 'other'"), "lies in queue 'other'"),
        (BadArg("CRON 'x' has 1 fields"), "has 1 fields"),
    ],
)  # fmt: skip
async def test_a_refusal_for_good_names_the_schedule_and_ends_the_worker(
    here: Site,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Error,
    said: str,
) -> None:
    worker = Worker()
    refusing(here, monkeypatch, nightly=[error])
    worker.schedule("nightly", cron="0 3 * * *")(print)
    assert await asyncio.wait_for(serve(worker, here), 30) == 1
    (told,) = [line for line in caplog.messages if "refuses this worker" in line]
    assert f"{error.code} the schedule nightly cannot be put: " in told
    assert said in told


async def test_one_that_finds_no_room_holds_up_neither_work_nor_others(
    here: Site,
    client: AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Any,
) -> None:
    monkeypatch.setattr(schedules, "AGAIN_FIRST_S", 0.01)
    caplog.set_level(logging.INFO, "tidewarden.worker")
    worker = Worker()
    ran: list[str] = []

    async def work(task: AsyncTask) -> None:
        ran.append(task.text)

    full: list[Error] = [Full("the cluster has 5 schedules, the most") for _ in range(3)]
    refusing(here, monkeypatch, first=full)
    for name in ("first", "second"):
        worker.schedule(name, every_ms=1_000, queue="jobs")(work)
    serving = asyncio.ensure_future(serve(worker, here))
    await client.queue("jobs").put("x")
    await eventually(lambda: len(puts(here)) == 2 and ran == ["x"])
    assert [call[0] for call in puts(here)] == ["second", "first"]
    worker.stop()
    assert await asyncio.wait_for(serving, 30) == 0
    warned = [line for line in caplog.messages if "cannot be put" in line]
    assert warned == [
        "the schedule first cannot be put: FULL the cluster has 5 schedules, the most;"
        " it is tried again"
    ]


async def test_a_store_that_is_away_for_a_moment_ends_no_worker(
    here: Site, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    worker = Worker()
    refusing(here, monkeypatch, a=[NoQuorum("too few"), NoQuorum("too few")])
    worker.schedule("a", every_ms=1_000)(print)
    serving = asyncio.ensure_future(serve(worker, here))
    await eventually(lambda: len(puts(here)) == 1)
    worker.stop()
    assert await asyncio.wait_for(serving, 30) == 0
