"""
The RESP door as stock clients see it: redis-py, redis-cli, and a stop. The queue and its store are
real.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
import redis.asyncio
from support.doors import doubles
from support.queues.desk import loading
from support.waiting import eventually, in_thread

from tidewarden.clock import SystemClock
from tidewarden.config.load import Config
from tidewarden.queue.queues import Queues
from tidewarden.store import Scripts, StoreConnection
from tidewarden.tokens.system_queues import system_queues


@pytest.fixture
async def door(valkey: Any, queue_scripts: Scripts) -> AsyncIterator[Any]:
    """A RESP door before a real queue and a real store."""
    scripts = queue_scripts
    clock = SystemClock()
    link = StoreConnection(valkey.url, "test", clock, on_up=loading(valkey, scripts))
    await link.start(wait_s=60)
    queues = Queues(Config(), link, scripts, clock, views=False, system_queues=system_queues())
    queues.catalog.holder = "n0.1"
    async with doubles.Door(queues=queues) as door:
        yield door
    await link.stop()


def stock(door: Any, **more: Any) -> redis.Redis:
    """redis-py as our documentation says it should be used."""
    return redis.Redis(
        port=door.port, single_connection_client=True, socket_timeout=None, retry=None, **more
    )


@pytest.mark.parametrize("protocol", [2, 3])
async def test_put_take_ack_by_redis_py(door: Any, protocol: int) -> None:
    def work() -> None:
        with stock(door, protocol=protocol) as client:
            assert client.ping()
            said = "ä".encode()
            assert client.execute_command("Q.PUT", "mail", b"\x00\r\n", "ID", "ä") == said
            ((queue, task_id, lease, payload, attempt, deadline_ms, end_ms),) = (
                client.execute_command("Q.TAKE", "WAIT", 10_000, "FROM", "other", "mail")
            )
            assert (queue, task_id, payload, attempt) == (b"mail", said, b"\x00\r\n", 1)
            assert deadline_ms <= end_ms
            assert client.execute_command("Q.ACK", "mail", task_id, lease)
            with pytest.raises(redis.ResponseError, match="NOTHELD"):
                client.execute_command("Q.ACK", "mail", task_id, lease + 1)
            assert client.execute_command("Q.ACK", "mail", "b", 1, "c", 2) == [0, 0]
            assert client.execute_command("Q.TAKE", "FROM", "mail") == []
            stats = client.execute_command("Q.STATS", "mail")
            if protocol == 2:
                stats = dict(zip(stats[::2], stats[1::2], strict=True))
            assert stats[b"ready"] == 0

    await in_thread(work)


@pytest.mark.parametrize("transaction", [False, True])
async def test_pipelines_of_redis_py(door: Any, transaction: bool) -> None:
    def work() -> None:
        with stock(door) as client:
            with client.pipeline(transaction=transaction) as pipeline:
                for number in range(300):
                    pipeline.execute_command("Q.PUT", "mail", str(number), "ID", f"{number:03}")
                pipeline.ping()
                pipeline.execute_command("Q.PUT", "mail", "x", "DELAY", "soon")
                found = pipeline.execute(raise_on_error=False)
            assert found[:300] == [f"{number:03}".encode() for number in range(300)]
            assert found[300] is True
            assert "DELAY must be an integer" in str(found[301])
            tasks = client.execute_command("Q.TAKE", "COUNT", 300, "FROM", "mail")
            assert sorted(task[1] for task in tasks) == found[:300]
            pairs = [item for task in tasks for item in (task[1], task[2])]
            assert client.execute_command("Q.ACK", "mail", *pairs) == [1] * 300

    await in_thread(work)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_asyncio_redis_py_waits_without_polling(door: Any, protocol: int) -> None:
    client = redis.asyncio.Redis(
        port=door.port,
        single_connection_client=True,
        socket_timeout=None,
        retry=None,
        protocol=protocol,
    )
    other = redis.asyncio.Redis(port=door.port, protocol=protocol)
    waiting = asyncio.ensure_future(
        client.execute_command("Q.TAKE", "WAIT", 30_000, "FROM", "mail")
    )
    await eventually(lambda: door.server.context.waiting != 0)
    async with other.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("Q.PUT", "mail", "x", "ID", "a")
        pipeline.ping()
        assert await pipeline.execute() == [b"a", True]
    ((_, task_id, lease, *_),) = await asyncio.wait_for(waiting, 20)
    assert await other.execute_command("Q.ACK", "mail", task_id, lease) == b"OK"
    assert await client.execute_command("Q.TAKE", "WAIT", 30, "FROM", "mail") == []
    await client.aclose()
    await other.aclose()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
@pytest.mark.parametrize("resp", ["-2", "-3"])
async def test_redis_cli(door: Any, resp: str) -> None:
    script = (
        "PING\nQ.PUT mail hello ID a\nQ.TAKE FROM mail\nQ.PUT mail x DELAY"
        " soon\nQ.LIST\nR.STATUS\nNONSENSE\n"
    )

    def work() -> str:
        command = ["redis-cli", resp, "-p", str(door.port), "--no-raw"]
        return subprocess.run(
            command, input=script, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    found = await in_thread(work)
    for expected in (
        "PONG",
        '"a"',
        '"hello"',
        "(error) BADARG DELAY",
        '1) "mail"',
        '"leader"',
        "unknown command 'NONSENSE'",
    ):
        assert expected in found


async def test_stop_answers_the_waiting_and_lets_holders_finish() -> None:
    door = doubles.Door()
    await door.__aenter__()
    holder, waiter, idler = await door.dial(), await door.dial(), await door.dial()
    holder.send("Q.PUT mail x ID a", "Q.TAKE FROM mail")
    found = [await holder.line() for _ in range(14)]
    lease = found[8].removeprefix(b":").decode()
    waiter.send("Q.TAKE WAIT 60000 FROM mail")
    assert await idler.ask("PING") == b"+PONG"
    await eventually(lambda: door.server.context.waiting != 0)
    stopping = asyncio.ensure_future(door.server.stop(60))
    assert (await waiter.line()).startswith(b"-DRAINING")
    assert (await waiter.ask("Q.TAKE FROM mail")).startswith(b"-DRAINING")
    assert not stopping.done()
    assert await holder.ask(f"Q.ACK mail a {lease}") == b"+OK"
    await asyncio.wait_for(stopping, 30)
    assert await idler.rest() == b""
    assert len(door.queues.closed) == len(door.queues.sessions)
    for line in door.lines:
        await line.close()


async def test_stop_does_not_wait_for_ever() -> None:
    async with doubles.Door() as door:
        holder = await door.dial()
        holder.send("Q.PUT mail x ID a", "Q.TAKE FROM mail")
        for _ in range(8):
            await holder.line()
        await asyncio.wait_for(door.server.stop(0.05), 30)
        assert door.queues.closed


async def test_a_silent_store_keeps_no_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidewarden.server.door_peers.GIVE_BACK_S", 0.05)

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    async with doubles.Door() as door:
        monkeypatch.setattr(door.queues, "close_session", never)
        holder = await door.dial()
        holder.send("Q.PUT mail x ID a", "Q.TAKE FROM mail")
        for _ in range(8):
            await holder.line()
        await asyncio.wait_for(door.server.stop(0.05), 30)
        assert "the leases of 1 sessions end when this node is found dead" in caplog.text


async def test_stats_count() -> None:
    async with doubles.Door() as door:
        line = await door.dial()
        await line.ask("PING")
        await line.ask("Q.PUT mail")
        found = door.server.stats()
        assert found["connections"] == 1
        assert found["requests_total"] == {"PING": 1, "Q.PUT": 1}
        assert found["errors_total"] == {"BADARG": 1}
