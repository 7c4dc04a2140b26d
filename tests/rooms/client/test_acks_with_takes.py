"""A worker's ack leaves in one write with its next take; what breaks between them harms neither."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors.client_harness import Site, url
from support.waiting import eventually

from tidewarden.client import AsyncClient, AsyncTask, Worker
from tidewarden.client.connection import ClientConnection
from tidewarden.errors import Draining, Error, NoQuorum, Stale, StoreDown


class Written:
    """A transport that notes each write; all else is the real one's."""

    def __init__(self, real: Any, writes: list[bytes]) -> None:
        self._real = real
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, data: bytes) -> None:
        self._writes.append(bytes(data))
        self._real.write(data)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What every connection of the SDK has written, write by write."""
    found: list[bytes] = []
    made = ClientConnection.connection_made
    monkeypatch.setattr(
        ClientConnection, "connection_made", lambda self, real: made(self, Written(real, found))
    )
    return found


@contextlib.asynccontextmanager
async def running(worker: Worker, urls: Any) -> AsyncIterator[None]:
    worker.urls = urls
    serving = asyncio.ensure_future(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        assert await asyncio.wait_for(serving, 30) == 0


async def put_all(here: Site, count: int, queue: str = "jobs") -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        await client.queue(queue).put_many([b"%d" % n for n in range(count)])


async def drained(here: Site, queue: str = "jobs") -> None:
    """Wait until every task of the queue is done."""
    while (await here.queues.admin.stats(queue))["total"]:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.thorough), 7])
async def test_an_ack_and_the_next_take_are_one_write(
    here: Site, writes: list[bytes], concurrency: int
) -> None:
    await put_all(here, 42)
    worker = Worker(concurrency=concurrency)
    seen: list[str] = []

    @worker.task("jobs")
    async def job(task: AsyncTask) -> str:
        seen.append(task.text)
        return "done"

    writes.clear()
    async with running(worker, here.urls):
        await drained(here)
    assert sorted(map(int, seen)) == list(range(42))
    acks = [data for data in writes if b"Q.ACK" in data]
    assert len(acks) == 42 / concurrency, "what ends together is told together"
    assert all(data.count(b"Q.ACK") == concurrency for data in acks)
    assert all(data.rfind(b"Q.ACK") < data.find(b"Q.TAKE") for data in acks), (
        "else it would wait behind the take"
    )


async def test_what_is_refused_and_what_fails_leaves_likewise(
    here: Site, writes: list[bytes]
) -> None:
    await put_all(here, 6)
    worker = Worker(concurrency=1, backoff_ms=0)

    @worker.task("jobs", backoff={ValueError: 3_600_000}, bury_on=(KeyError,))
    async def job(task: AsyncTask) -> None:
        raise [KeyError, ValueError][int(task.text) % 2](task.text)

    writes.clear()
    async with running(worker, here.urls):
        while (found := await here.queues.admin.stats("jobs"))["delayed"] + found["buried"] < 6:
            await asyncio.sleep(0.01)
    for verb in (b"Q.FAIL", b"Q.BURY"):
        told = [data for data in writes if verb in data]
        assert len(told) == 3
        assert all(data.find(verb) < data.find(b"Q.TAKE") for data in told)


async def test_an_ack_does_not_wait_behind_a_take_that_waits(here: Site) -> None:
    """One of two is at work, so a take for the other waits, up to 20 s; the ack goes by itself."""
    worker = Worker(concurrency=2)
    goes_on = asyncio.Event()

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        await goes_on.wait()

    async with AsyncClient(here.urls, spread=False) as client, running(worker, here.urls):
        task_id = await client.queue("jobs").put(b"")
        await eventually(lambda: here.queues.consumer.waiting())
        goes_on.set()
        assert (await client.queue("jobs").wait(task_id, timeout_ms=5_000)).word == "done"
        assert here.queues.consumer.waiting(), "and the take waits on"


@pytest.mark.parametrize("part", ["request", "reply"])
async def test_the_connection_breaks_at_the_ack(
    here: Site, part: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # of the take whose answer is lost with it
    await here.queues.admin.configure("jobs", {"lease_ms": 500})
    await put_all(here, 5)
    worker = Worker(concurrency=1)
    seen: list[str] = []

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        seen.append(task.text)

    proxy = here.proxied()
    lost = proxy.lose("", part, b"Q.ACK")
    async with running(worker, url(proxy.port)):
        await asyncio.to_thread(lost.wait)
        await drained(here)
    assert sorted(seen) == list("01234"), "the ack was repeated, and the same ack is answered again"
    assert "not ours" not in caplog.text


@pytest.mark.parametrize("error", [StoreDown, NoQuorum, Draining, Stale])
async def test_an_ack_that_is_refused_in_passing_is_repeated(
    here: Site, error: type[Error], monkeypatch: Any
) -> None:
    """
    Its end unknown, or not done: on the client's own line, for the take's may be waiting by then.
    """
    worker = Worker(concurrency=1)
    asked: list[str] = []
    ack = here.queues.ack

    def refusing(session: Any, queue: str, pairs: Any, result: bytes = b"") -> Any:
        asked.append(queue)
        if len(asked) > 1:
            return ack(session, queue, pairs, result)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(error("in passing"))
        return failed

    monkeypatch.setattr(here.queues, "ack", refusing)

    @worker.task("jobs")
    async def job(task: AsyncTask) -> str:
        return "result"

    async with AsyncClient(here.urls, spread=False) as client, running(worker, here.urls):
        task_id = await client.queue("jobs").put(b"")
        ending = await client.queue("jobs").wait(task_id, timeout_ms=15_000)
    assert (ending.word, ending.result, len(asked)) == ("done", b"result", 2)


async def test_a_stop_leaves_the_answer_of_an_ack_time_to_come(
    here: Site, monkeypatch: Any
) -> None:
    """
    The take that left with it is called off, but only once the ack is answered: hanging up sooner
    could lose that.
    """
    await put_all(here, 1)
    worker = Worker(concurrency=1)
    asked: list[Any] = []
    goes_on = asyncio.Event()
    ack = here.queues.ack

    async def slow(session: Any, queue: str, pairs: Any, result: bytes = b"") -> Any:
        asked.append(pairs)
        await goes_on.wait()
        return await ack(session, queue, pairs, result)

    monkeypatch.setattr(here.queues, "ack", lambda *args: asyncio.ensure_future(slow(*args)))

    @worker.task("jobs")
    async def job(task: AsyncTask) -> str:
        return "result"

    worker.urls = here.urls
    serving = asyncio.ensure_future(worker.serve())
    await eventually(lambda: asked)
    worker.stop()
    await asyncio.sleep(0.1)
    assert not serving.done()
    goes_on.set()
    assert await asyncio.wait_for(serving, 30) == 0
    assert len(asked) == 1
    assert (await here.queues.admin.stats("jobs"))["total"] == 0


async def test_a_worker_that_is_hurried_releases_nothing_that_it_has_acknowledged(
    here: Site, monkeypatch: Any
) -> None:
    await put_all(here, 1)
    worker = Worker(concurrency=1)
    asked, goes_on = asyncio.Event(), asyncio.Event()
    ack = here.queues.ack

    async def slow(*args: Any) -> Any:
        asked.set()
        await goes_on.wait()
        return await ack(*args)

    monkeypatch.setattr(here.queues, "ack", lambda *args: asyncio.ensure_future(slow(*args)))
    monkeypatch.setattr(
        here.queues, "release", lambda *_args, **_options: pytest.fail("it was released")
    )

    @worker.task("jobs")
    async def job(task: AsyncTask) -> str:
        return "result"

    worker.urls = here.urls
    serving = asyncio.ensure_future(worker.serve())
    await asked.wait()
    worker.stop()
    worker.stop()
    await asyncio.sleep(0.05)
    goes_on.set()
    assert await asyncio.wait_for(serving, 30) == 0
    assert (await here.queues.admin.stats("jobs"))["total"] == 0
