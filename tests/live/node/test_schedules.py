"""Schedules of workers on real nodes: declared by several, run once each, changed, and seen."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import quote

import pytest
from support.cluster.harness import ADMIN, Cluster, cluster_of_module, until_async

from tidewarden.client import AsyncClient, AsyncTask, Worker
from tidewarden.config.load import hash_generated
from tidewarden.errors import Denied

ADA = ("ada", "ada's secret for tests")
NARROW = (
    f'[[users]]\nname = "{ADA[0]}"\nsecret_hash = "{hash_generated(ADA[1])}"\n'
    'rights = ["take:ticks", "put:ticks", "schedule:ada.*"]\n'
)
nodes = cluster_of_module(extra=NARROW)


def url(nodes: Cluster, user: str = ADMIN, secret: str = "", name: str = "n0") -> str:
    word = quote(secret or nodes.secret, safe="")
    return f"redis://{user}:{word}@127.0.0.1:{nodes.nodes[name].base_port}"


async def test_several_workers_declare_one_schedule_and_each_tick_runs_once(
    nodes: Cluster,
) -> None:
    ran: Counter[str] = Counter()

    def made(name: str, every_ms: int) -> Worker:
        worker = Worker(url(nodes, name=name))

        @worker.schedule("ticking", every_ms=every_ms, catchup="all", queue="ticking")
        async def tick(task: AsyncTask) -> str:
            ran[task.id] += 1
            return "done"

        return worker

    workers = [made(name, 100) for name in nodes.nodes]
    serving = [asyncio.ensure_future(worker.serve()) for worker in workers]
    async with AsyncClient(url(nodes)) as client:
        await until_async(lambda: len(ran) >= 10, what="ten ticks ran")
        assert [row["every_ms"] for row in await client.schedules.list()] == [100]
        again = made("n1", 3_600_000)
        serving.append(asyncio.ensure_future(again.serve()))
        await until_async(lambda: worked(again), what="the changed schedule is declared")
        for _ in range(200):
            shown = await client.schedules.get("ticking")
            if shown["every_ms"] == 3_600_000 and shown["last"]["state"] == "done":
                break
            await asyncio.sleep(0.05)
        assert (shown["every_ms"], shown["last"]["state"]) == (3_600_000, "done")
        assert shown["last"]["id"] in ran
        assert shown["last"]["ended_ms"] >= shown["last"]["put_ms"] - 5_000
        assert len(shown["next"]) == 5
        by_hand = await client.schedules.run("ticking", id="once")
        assert by_hand == await client.schedules.run("ticking", id="once")
        await until_async(lambda: ran[by_hand] > 0, what="it ran by hand")
        found = await client.schedules.outlook()
        assert [one["name"] for one in found["ticks"]][:1] == ["ticking"]
        for worker in (*workers, again):
            worker.stop()
        assert await asyncio.wait_for(asyncio.gather(*serving), 60) == [0] * 4
        assert set(ran.values()) == {1}
        assert len(await client.schedules.list()) == 1, "it stays when its workers have gone"
        assert await client.schedules.delete("ticking")


def worked(worker: Worker) -> bool:
    """Whether it is connected and has begun to work."""
    try:
        return worker.client.line.up
    except RuntimeError:
        return False


async def test_who_may_less_is_told_and_sees_his_own(
    nodes: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(url(nodes)) as admin, AsyncClient(url(nodes, *ADA)) as ada:
        await admin.schedules.put("hidden", "ticks", "x", every_ms=3_600_000)
        await ada.schedules.put("ada.own", "ticks", "x", every_ms=3_600_000)
        assert [row["name"] for row in await ada.schedules.list()] == ["ada.own"]
        found = await ada.schedules.outlook()
        assert {one["name"] for one in found["ticks"]} == {"ada.own"}
        for work in (ada.schedules.get, ada.schedules.run):
            with pytest.raises(Denied, match="schedule:hidden"):
                await work("hidden")
        assert await ada.schedules.run("ada.own", id="r") == "ada.own:run:r"
        assert (await ada.schedules.get("ada.own"))["last"]["state"] == "ready"
    worker = Worker(url(nodes, *ADA))
    worker.schedule("nightly", cron="0 3 * * *", queue="ticks")(print)
    assert await asyncio.wait_for(worker.serve(), 60) == 1
    assert "the schedule nightly cannot be put: " in caplog.text
    assert "schedule:nightly" in caplog.text
