"""The worker against a real node: what becomes of returns, exceptions, lost leases and a stop."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors.client_harness import Site, site
from support.inspect import told_of

from tidewarden.client import AsyncClient, AsyncTask, Task, Worker
from tidewarden.client import worker as module
from tidewarden.client.acks_with_takes import AcksWithTakes
from tidewarden.errors import BadArg, NotFound
from tidewarden.queue.sessions.session import Shared, gone


async def serve(worker: Worker, here: Site) -> int:
    worker.urls = here.urls
    return await worker.serve()


@contextlib.asynccontextmanager
async def running(worker: Worker, here: Site) -> AsyncIterator[asyncio.Task[int]]:
    serving = asyncio.ensure_future(serve(worker, here))
    try:
        yield serving
    finally:
        worker.stop()
        assert await asyncio.wait_for(serving, 30) == 0


async def test_what_handlers_return_is_the_result(here: Site, client: AsyncClient) -> None:
    worker = Worker(concurrency=3)

    @worker.task("bytes")
    async def as_bytes(task: AsyncTask) -> bytes:
        return task.payload * 2

    @worker.task("text")
    def as_text(task: Task) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return task.text.upper()

    @worker.task("json")
    def as_json(task: Task) -> dict[str, Any]:
        return {"given": task.json()}

    @worker.task("nothing")
    async def nothing(task: AsyncTask) -> None:
        await worker.client.queue("bytes").put(b"from a handler", id="follow-up")

    async with running(worker, here):
        for queue, payload, result in (
            ("bytes", "ab", b"abab"),
            ("text", "ab", b"AB"),
            ("json", "[1]", b'{"given":[1]}'),
            ("nothing", "", b""),
        ):
            task_id = await client.queue(queue).put(payload)
            ending = await client.queue(queue).wait(task_id, timeout_ms=20_000)
            assert (ending.word, ending.result) == ("done", result)
        assert (await client.queue("bytes").wait("follow-up", timeout_ms=20_000)).word == "done"


async def test_it_says_how_much_it_has_done_and_not_each_task(
    here: Site,
    client: AsyncClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.2)
    caplog.set_level(logging.INFO, "tidewarden.worker")
    worker = Worker(each_task=False)

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        pass

    jobs = client.queue("jobs")
    async with running(worker, here):
        for wave in range(2):
            ids = [await jobs.put("x", id=f"{wave}-{number}") for number in range(20)]
            for task_id in ids:
                await jobs.wait(task_id, timeout_ms=20_000)
            async with asyncio.timeout(20):
                while sum(done_of(caplog)) < 20 * (wave + 1):
                    await asyncio.sleep(0.01)
    assert done_of(caplog)[0] == 1, "the first one at once"
    assert len(done_of(caplog)) < 20


async def test_on_a_terminal_it_says_of_each_task_what_became_of_it(
    here: Site,
    client: AsyncClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    caplog.set_level(logging.INFO, "tidewarden.worker")
    worker = Worker()

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        if task.text == "twice" and task.attempt == 1:
            await task.fail(0, reason="once more")

    jobs = client.queue("jobs")
    monkeypatch.setattr(sys, "stderr", Terminal())
    async with running(worker, here):
        for text in ("once", "twice"):
            await jobs.put(text, id=text)
            assert (await jobs.wait(text, timeout_ms=20_000)).word == "done"
    said = [re.sub(r"\d\.\d{3} s", "N s", line) for line in caplog.messages]
    told = [line for line in said if line.startswith("task ")]
    assert told == [
        "task once of jobs done in N s",
        "task twice of jobs settled by its function in N s",
        "task twice of jobs done in N s, attempt 2",
    ]
    assert done_of(caplog) == [2], "how many there were, at the end"


def done_of(caplog: pytest.LogCaptureFixture) -> list[int]:
    """How many tasks each line says that were done."""
    said = (re.match(r"tasks done: (\d+);", line) for line in caplog.messages)
    return [int(found[1]) for found in said if found]


async def test_work_is_not_done_again_because_a_full_store_has_no_room_for_its_result(
    here: Site, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker()
    calls = 0

    @worker.task("jobs")
    async def job(task: AsyncTask) -> bytes:
        nonlocal calls
        calls += 1
        await here.nodes[0].link.call("CONFIG", "SET", "maxmemory", "1")
        return b"y" * 10_000

    jobs = client.queue("jobs")
    try:
        async with running(worker, here):
            await jobs.put("x", id="a")
            ending = await jobs.wait("a", timeout_ms=20_000)
    finally:
        await here.nodes[0].link.call("CONFIG", "SET", "maxmemory", "0")
    assert (calls, ending.word, ending.result) == (1, "done", b"")
    assert "the result of task a of jobs is dropped: the store is full" in caplog.text


async def test_a_queue_that_is_dropped_keeps_it_from_no_other(
    here: Site,
    client: AsyncClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.2)
    caplog.set_level(logging.INFO, "tidewarden.worker")
    worker = Worker()
    done: list[str] = []

    async def handler(task: AsyncTask) -> None:
        done.append(f"{task.queue} {task.id}")

    for name in ("first", "second", "third"):
        worker.task(name)(handler)
        await client.queue(name).put("x", id="a")
    async with running(worker, here):
        await eventually(lambda: len(done) == 3)
        await client.queue("second").drop(force=True)
        for name in ("first", "third"):
            await client.queue(name).put("x", id="b")
        await eventually(lambda: {"first b", "third b"} <= set(done))
        await eventually(lambda: "nothing is taken from second" in caplog.text)
        await client.queue("second").configure(lease_ms=30_000)
        await client.queue("second").put("x", id="c")
        await eventually(lambda: "second c" in done)
        await eventually(lambda: "the queue second is there again" in caplog.text)
    told = [line for line in caplog.messages if "nothing is taken" in line]
    assert told == [
        "nothing is taken from second: NOTFOUND the queue second was dropped; Q.CONFIG second SET"
        " with any setting makes it again; it is tried again every 0.2 s"
    ]


async def test_a_session_that_was_ended_is_no_dropped_queue(
    here: Site, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """SESSION END kept a worker from its queue until that was tried again."""
    monkeypatch.setattr(module, "AGAIN_S", 600.0)
    worker = Worker()
    done: list[str] = []
    refusals = [NotFound(str(gone(Shared("00" * 16, "default"))))]
    take_words = AsyncClient.take_words

    async def refused_once(self: AsyncClient, *args: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await take_words(self, *args, **options)

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        done.append(task.id)

    monkeypatch.setattr(AsyncClient, "take_words", refused_once)
    await client.queue("jobs").put("x", id="a")
    async with running(worker, here):
        await eventually(lambda: done == ["a"])
    assert not refusals


async def test_where_all_queues_are_dropped_it_waits_for_one(
    here: Site, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.2)
    worker = Worker()
    done: list[str] = []

    async def handler(task: AsyncTask) -> None:
        done.append(task.id)

    for name in ("q", "r"):
        worker.task(name)(handler)
        await client.queue(name).put("x", id=name)
    async with running(worker, here):
        await eventually(lambda: sorted(done) == ["q", "r"])
        for name in ("q", "r"):
            await client.queue(name).drop(force=True)
        await client.queue("r").configure(lease_ms=30_000)
        await client.queue("r").put("x", id="again")
        await eventually(lambda: done[-1] == "again")


async def test_who_named_no_backoff_has_the_workers(here: Site, client: AsyncClient) -> None:
    worker = Worker(backoff_ms=60_000)

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        raise RuntimeError(task.text)

    jobs = client.queue("jobs")
    async with running(worker, here):
        await jobs.put("spins", id="none")
        await jobs.put("as told", id="named", backoff_ms=1, attempts=3)
        assert (await jobs.wait("named", timeout_ms=60_000)).word == "buried"
        while (left := await jobs.peek("none")).state != "delayed":
            await asyncio.sleep(0.01)
    assert (left.attempts, left.reason) == (1, "RuntimeError: spins")
    with pytest.raises(BadArg):
        Worker(backoff_ms=-1)


async def test_exceptions_fail_with_a_backoff_of_their_own_or_bury(
    here: Site, client: AsyncClient, eventually: Any
) -> None:
    worker = Worker(concurrency=3)

    @worker.task("jobs", backoff={OSError: 60_000, ConnectionError: 1}, bury_on=(ValueError,))
    def job(task: Task) -> None:
        if task.attempt == 2:
            return
        raise {
            "bury": UnicodeError("bad"),
            "soon": ConnectionResetError("gone"),
            "late": TimeoutError("slow"),
        }[task.text]

    jobs = client.queue("jobs")
    async with running(worker, here):
        await jobs.put("bury", id="bury")
        await jobs.put("late", id="late")
        await jobs.put("soon", id="soon")
        assert (await jobs.wait("soon", timeout_ms=20_000)).word == "done"
        ending = await jobs.wait("bury", timeout_ms=20_000)
        assert (ending.word, ending.result) == ("buried", b"UnicodeError: bad")
        while (found := await jobs.peek("late")).state != "delayed":
            await asyncio.sleep(0.01)
        assert found.reason == "TimeoutError: slow"
        assert found.fields["next_ms"] - found.due_ms > 50_000


async def test_a_backoff_may_be_a_function(here: Site, client: AsyncClient) -> None:
    asked: list[tuple[str, int]] = []

    def backoff(error: Exception, attempt: int) -> int | None:
        asked.append((str(error), attempt))
        return 1 if attempt < 3 else None

    worker = Worker()

    @worker.task("jobs", backoff=backoff)
    async def job(task: AsyncTask) -> None:
        raise RuntimeError("no")

    async with running(worker, here):
        await client.queue("jobs").put("x", id="a", attempts=3)
        assert (await client.queue("jobs").wait("a", timeout_ms=20_000)).word == "buried"
    assert asked == [("no", 1), ("no", 2), ("no", 3)]


async def test_what_a_handler_settles_itself_stays_so(here: Site, client: AsyncClient) -> None:
    worker = Worker()

    @worker.task("jobs")
    def job(task: Task) -> str:
        if task.attempt == 1 and task.text == "sync":
            task.fail(1, reason="not yet")
            return "ignored"
        return "done"

    @worker.task("others")
    async def other(task: AsyncTask) -> None:
        await task.bury("never")
        raise ValueError("after it was settled")

    async with running(worker, here):
        await client.queue("jobs").put("sync", id="a")
        await client.queue("others").put("x", id="b")
        assert (await client.queue("jobs").wait("a", timeout_ms=20_000)).result == b"done"
        assert (await client.queue("others").wait("b", timeout_ms=20_000)).result == b"never"


async def test_concurrency_is_kept_and_used(
    here: Site, client: AsyncClient, eventually: Any
) -> None:
    worker = Worker(concurrency=4)
    now, most, release = 0, 0, asyncio.Event()

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await release.wait()
        now -= 1

    ids = await client.queue("jobs").put_many([b"x"] * 20)
    async with running(worker, here):
        await eventually(lambda: now == 4)
        assert (await client.queue("jobs").stats())["leased"] == 4
        release.set()
        for task_id in ids:
            assert (await client.queue("jobs").wait(task_id, timeout_ms=20_000)).word == "done"
    assert most == 4


@pytest.mark.thorough
async def test_leases_run_on_while_handlers_work(
    here: Site, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tidewarden.client.lease_keeper.SHARE", 60
    )  # so that a lease may be long where a machine stands still
    worker = Worker()

    @worker.task("jobs", lease_ms=15_000)
    def blocking(task: Task) -> int:
        end_ms = task.lease_end_ms
        while task.lease_end_ms <= end_ms + 500:
            assert not task.wait_lost(0.1)
        return task.attempt

    @worker.task("others", lease_ms=15_000)
    async def other(task: AsyncTask) -> int:
        end_ms = task.lease_end_ms
        while task.lease_end_ms <= end_ms + 500:
            assert not await task.wait_lost(0.1)
        return task.attempt

    async with running(worker, here):
        await client.queue("jobs").put("x", id="a")
        await client.queue("others").put("x", id="a")
        assert (await client.queue("jobs").wait("a", timeout_ms=20_000)).result == b"1"
        assert (await client.queue("others").wait("a", timeout_ms=20_000)).result == b"1"


async def test_a_handler_whose_lease_is_lost_is_cancelled(
    here: Site, client: AsyncClient, eventually: Any
) -> None:
    worker = Worker()
    seen: list[tuple[int, str]] = []

    @worker.task("jobs", lease_ms=1500)
    async def job(task: AsyncTask) -> None:
        if task.attempt == 1 and not seen:
            seen.append((task.fence, "begun"))
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append((task.fence, "cancelled"))
                raise
        seen.append((task.fence, "ended"))

    async with running(worker, here):
        await client.queue("jobs").put("x", id="a")
        await eventually(lambda: seen)
        await client.queue("jobs").release_all()
        assert (await client.queue("jobs").wait("a", timeout_ms=20_000)).word == "done"
        await eventually(lambda: len(seen) == 3)
    assert {word for _, word in seen} == {"begun", "cancelled", "ended"}
    fences = {word: fence for fence, word in seen}
    assert fences["ended"] > fences["begun"] == fences["cancelled"]


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [False, True])
async def test_a_stop_lets_work_finish_and_releases_the_rest(
    here: Site, client: AsyncClient, eventually: Any, blocks: bool
) -> None:
    worker = Worker(concurrency=2, grace_s=600)
    begun: list[str] = []
    hold, told = threading.Event(), threading.Event()

    if blocks:

        @worker.task("jobs")
        def job(task: Task) -> None:
            begun.append(task.id)
            (told if task.id == "quick" else hold).wait(60)

    else:

        @worker.task("jobs")
        async def job_(task: AsyncTask) -> None:
            begun.append(task.id)
            while not (told if task.id == "quick" else hold).is_set():
                await asyncio.sleep(0.01)

    jobs = client.queue("jobs")
    for name in ("quick", "slow", "waiting"):
        await jobs.put("x", id=name)
    async with running(worker, here):
        await eventually(lambda: len(begun) == 2)
        worker.stop()
        await eventually(lambda: told_of(worker).is_set())
        told.set()
        assert (await jobs.wait("quick", timeout_ms=20_000)).word == "done"
    assert (await jobs.peek("slow")).state == "ready"
    assert (await jobs.peek("slow")).attempts == 0  # released, not failed
    assert (await jobs.peek("waiting")).state == "ready"
    assert sorted(begun) == ["quick", "slow"]
    hold.set()


async def endless(worker: Worker, client: AsyncClient) -> asyncio.Event:
    """A task that ends by itself after ten minutes; set when the worker has begun it."""
    begun = asyncio.Event()

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        begun.set()
        await asyncio.sleep(600)

    await client.queue("jobs").put("x", id="a")
    return begun


async def test_the_grace_of_a_stop_ends(here: Site, client: AsyncClient) -> None:
    worker = Worker(grace_s=0.1)
    begun = await endless(worker, client)
    serving = asyncio.ensure_future(serve(worker, here))
    await asyncio.wait_for(begun.wait(), 20)
    worker.stop()
    assert await asyncio.wait_for(serving, 30) == 0
    assert (await client.queue("jobs").peek("a")).state == "ready"


async def test_at_the_end_of_the_grace_a_handler_is_cancelled(
    here: Site, client: AsyncClient
) -> None:
    """It would go on beside whoever has its task next."""
    worker, begun, ended = Worker(grace_s=0.1), asyncio.Event(), asyncio.Event()

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    await client.queue("jobs").put("x", id="a")
    serving = asyncio.ensure_future(serve(worker, here))
    async with asyncio.timeout(60):
        await begun.wait()
        worker.stop()
        assert await serving == 0
    assert ended.is_set()
    assert (await client.queue("jobs").peek("a")).attempts == 0  # released, not failed


async def test_a_stop_releases_no_task_whose_ack_is_under_way(
    here: Site, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release could overtake it, and what was done would be done again."""
    worker, sending, sent = Worker(grace_s=0.05), asyncio.Event(), list[Any]()

    @worker.task("jobs")
    async def job(task: AsyncTask) -> None: ...

    async def unanswered(_: AcksWithTakes, command: tuple[Any, ...]) -> Any:
        sent.append(command[:3])
        sending.set()
        await asyncio.sleep(600)

    monkeypatch.setattr(AcksWithTakes, "send", unanswered)
    await client.queue("jobs").put("x", id="a")
    async with running(worker, here):
        await asyncio.wait_for(sending.wait(), 20)
    assert sent == [("Q.ACK", "jobs", "a")]


async def test_a_second_signal_does_not_wait(
    here: Site, client: AsyncClient, eventually: Any
) -> None:
    worker = Worker(grace_s=600)
    begun = await endless(worker, client)
    async with running(worker, here):
        await asyncio.wait_for(begun.wait(), 20)
        worker.stop()
    assert (await client.queue("jobs").peek("a")).state == "ready"


async def test_a_worker_that_is_refused_says_so_and_ends(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from support.doors import doubles as server_doubles

    async with site(node, users=(server_doubles.ADMIN,)) as guarded:
        worker = Worker(guarded.urls)
        worker.task("jobs")(print)
        assert await asyncio.wait_for(worker.serve(), 30) == 1
        assert "the cluster refuses this worker: NOAUTH" in caplog.text
        port = guarded.doors[0].port
        other = Worker(f"redis://admin:{'correct%20horse%20%25%20battery'}@127.0.0.1:{port}")
        other.task("jobs")(print)
        serving = asyncio.ensure_future(other.serve())
        while guarded.doors[0].server.context.waiting == 0:
            await asyncio.sleep(0.01)
        other.stop()
        assert await asyncio.wait_for(serving, 30) == 0


async def test_what_cannot_be_a_worker() -> None:
    with pytest.raises(BadArg, match="concurrency is 0"):
        Worker(concurrency=0)
    worker = Worker()
    with pytest.raises(BadArg, match="no handler"):
        await worker.serve()
    worker.task("jobs")(print)
    with pytest.raises(BadArg, match="has a handler already"):
        worker.task("jobs")(print)
    with pytest.raises(RuntimeError, match="does not run"):
        _ = worker.client


async def test_what_always_fails_is_buried_in_the_end(here: Site, client: AsyncClient) -> None:
    worker = Worker(attempts=3, backoff_ms=1)
    seen: dict[str, int] = {}

    @worker.task("mails")
    @worker.task("limited")
    async def fail(task: AsyncTask) -> None:
        seen[task.id] = task.attempt
        raise ValueError("never")

    await client.queue("limited").configure(attempts=2)
    await client.queue("mails").put(b"", id="plain")
    await client.queue("mails").put(b"", id="named", attempts=5)
    await client.queue("limited").put(b"", id="of-the-queue")
    async with running(worker, here):
        for queue, name, attempts in (
            ("mails", "plain", 3),
            ("mails", "named", 5),
            ("limited", "of-the-queue", 2),
        ):
            ending = await client.queue(queue).wait(name, timeout_ms=60_000)
            assert (ending.word, seen[name]) == ("buried", attempts), name


async def test_a_worker_gives_up_after_25_attempts_unless_told_otherwise() -> None:
    assert Worker().attempts == 25
    with pytest.raises(BadArg, match="attempts is -1; allowed is 0 or more"):
        Worker(attempts=-1)
