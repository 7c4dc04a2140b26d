"""
The blocking client against a real node: blocks, threads, Ctrl-C, and the same arguments as the
asyncio one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
import time
from typing import Any

import pytest
from support.cluster.processes import until
from support.doors.client_harness import Site
from support.waiting import in_thread

from tidewarden.client import (
    AsyncClient,
    AsyncLock,
    AsyncQueue,
    AsyncTask,
    Client,
    Lock,
    NewTask,
    Queue,
    Task,
)
from tidewarden.errors import NotHeld, Unreachable


@pytest.mark.parametrize(
    ("front", "inner"),
    [(Client, AsyncClient), (Queue, AsyncQueue), (Task, AsyncTask), (Lock, AsyncLock)],
)
def test_everything_that_the_asyncio_client_has_is_there(front: type, inner: type) -> None:
    internal = (
        {"wait", "take_words", "quietly", "send_off", "begin"} if inner is AsyncClient else set()
    )
    internal |= (
        {"touched", "mark_lost", "renewal", "returning"}
        if inner in (AsyncTask, AsyncLock)
        else set()
    )
    internal |= {"since", "on_lost", "way"}
    wanted = {name for name in dir(inner) if not name.startswith("_")} - internal
    assert wanted - set(dir(front)) == set()
    for name in wanted:
        ours, theirs = getattr(front, name), getattr(inner, name)
        if inspect.iscoroutinefunction(theirs):
            assert [*inspect.signature(ours).parameters] == [
                *inspect.signature(theirs).parameters
            ], name
            assert (
                not inspect.iscoroutinefunction(inspect.unwrap(ours)) or ours.__wrapped__ is theirs
            )


async def test_put_take_ack(here: Site) -> None:
    def work() -> None:
        with Client(here.urls, spread=False) as client:
            queue = client.queue("mail")
            assert queue.take() is None
            task_id = queue.put("hello", priority=3)
            queue.put_json({"n": 1})
            first, second = queue.take_many(2)
            assert (first.id, first.queue, first.payload, first.text, first.attempt) == (
                task_id,
                "mail",
                b"hello",
                "hello",
                1,
            )
            assert first.fence == first.lease
            assert first.lease_end_ms > first.deadline_ms
            assert first.lease_ms > 15_000
            assert second.json() == {"n": 1}
            first.ack("result")
            assert first.settled
            assert queue.wait(task_id, timeout_ms=0).result == b"result"
            assert queue.ack_many([second, (task_id, 1)]) == [True, False]
            assert queue.stats()["total"] == 0
            assert client.queues() == ["mail"]
            assert client.status()["node"] == "n0"
            assert client.execute("PING", "x") == "x"
            assert client.take("other", "mail") == []

    await in_thread(work)


async def test_a_block_acknowledges_fails_or_releases(here: Site) -> None:
    def work() -> None:
        with Client(here.urls, spread=False) as client:
            queue = client.queue("mail")
            queue.put_many(
                [
                    NewTask("x", name, {"backoff_ms": 60_000})
                    for name in ("done", "failed", "stopped", "buried")
                ]
            )
            tasks = {task.id: task for task in queue.take_many(4)}
            with tasks["done"]:
                pass
            with pytest.raises(KeyError), tasks["failed"]:
                raise KeyError("missing")
            with pytest.raises(SystemExit), tasks["stopped"]:
                raise SystemExit(3)
            with tasks["buried"] as task:
                task.bury("by hand")
            assert queue.wait("done", timeout_ms=0).word == "done"
            assert (queue.peek("failed").state, queue.peek("failed").reason) == (
                "delayed",
                "KeyError: 'missing'",
            )
            assert (queue.peek("stopped").state, queue.peek("stopped").attempts) == ("ready", 0)
            assert queue.peek("buried").reason == "by hand"
            found = [task.id for task in queue.search("buried", match="by *", match_in="reason")]
            assert found == ["buried"]
            assert queue.put_again("buried", "y")
            assert all(task.settled for task in tasks.values())

    await in_thread(work)


@pytest.mark.thorough
async def test_a_block_keeps_its_lease_and_hears_when_it_is_lost(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tidewarden.client.lease_keeper.SHARE", 60
    )  # so that a lease may be long where a machine stands still

    def work() -> None:
        with Client(here.urls, spread=False) as client:
            queue = client.queue("mail")
            queue.put("x", id="a")
            with queue.take(lease_ms=30_000) as task:  # type: ignore[union-attr]
                end_ms = task.lease_end_ms
                until(lambda: task.lease_end_ms > end_ms + 1500)
                assert not task.lost
            queue.put("x", id="b")
            task = queue.take(lease_ms=30_000)  # type: ignore[assignment]
            assert task is not None
            task.__enter__()
            queue.release_all()
            assert task.wait_lost(20)
            assert task.lost
            with pytest.raises(NotHeld):
                task.__exit__(None, None, None)
            assert queue.peek("b").state == "ready"

    await in_thread(work)


async def test_a_waiting_take_holds_nobody_up(here: Site) -> None:
    def work() -> None:
        with Client(here.urls, spread=False) as client:
            found: list[Any] = []
            takers = [
                threading.Thread(
                    target=lambda: found.append(client.queue("mail").take(wait_ms=60_000))
                )
                for _ in range(3)
            ]
            for taker in takers:
                taker.start()
            while here.doors[0].server.context.waiting < 3:
                time.sleep(0.01)
            begun = time.monotonic()
            client.queue("mail").put_many(["1", "2", "3"])
            for taker in takers:
                taker.join(50)
            assert time.monotonic() - begun < 40
            assert sorted(task.payload for task in found) == [b"1", b"2", b"3"]

    await in_thread(work)


@pytest.mark.thorough
async def test_many_threads_share_a_client(here: Site) -> None:
    def work() -> None:
        with Client(here.urls, spread=False) as client:
            queue = client.queue("mail")
            problems: list[BaseException] = []

            def producer(number: int) -> None:
                for count in range(50):
                    queue.put(f"{number}-{count}")

            seen: list[str] = []

            def consumer() -> None:
                try:
                    while (task := queue.take(wait_ms=300)) is not None:
                        with task:
                            seen.append(task.text)
                except BaseException as error:
                    problems.append(error)

            threads = [threading.Thread(target=producer, args=(number,)) for number in range(4)]
            threads += [threading.Thread(target=consumer) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            for task in queue.take_many(200):  # what came after a consumer's last look
                seen.append(task.text)
                task.ack()
            assert not problems
            assert sorted(seen) == sorted(
                f"{number}-{count}" for number in range(4) for count in range(50)
            )

    await in_thread(work)


async def test_an_interrupted_take_gives_back_what_still_comes(here: Site) -> None:
    """Ctrl-C while a take waits: whatever is put then goes to somebody else at once."""

    class Interrupted(BaseException):
        pass

    def work() -> None:
        with Client(here.urls, spread=False) as client:
            queue = client.queue("mail")

            real = concurrent.futures.Future.result

            def interrupted(self: Any, timeout: float | None = None) -> Any:
                while here.doors[0].server.context.waiting == 0:
                    time.sleep(0.005)
                raise Interrupted

            concurrent.futures.Future.result = interrupted  # type: ignore[method-assign]
            try:
                with pytest.raises(Interrupted):
                    queue.take(wait_ms=20_000)
            finally:
                concurrent.futures.Future.result = real  # type: ignore[method-assign]
            queue.put("x", id="a")
            while here.doors[0].server.context.waiting:
                time.sleep(0.005)
            task = queue.take(wait_ms=10_000)
            assert task is not None
            assert task.id == "a"

    await in_thread(work)


async def test_what_a_closed_client_answers(here: Site) -> None:
    def work() -> None:
        client = Client(here.urls, spread=False)
        queue = client.queue("mail")
        queue.put("x", id="a")
        task = queue.take()
        assert task is not None
        task.__enter__()
        client.close()
        client.close()
        with pytest.raises(RuntimeError, match="was closed"):
            queue.put("x")
        with Client(here.urls, spread=False) as other:
            again = other.queue("mail").take(wait_ms=10_000)  # given back by the close
            assert again is not None
            assert again.attempt == 1

    await in_thread(work)


async def test_a_client_nobody_closed_ends_with_its_last_reference(here: Site) -> None:
    def work() -> None:
        before = threading.active_count()
        queue = Client(here.urls, spread=False).queue("mail")
        queue.put("x")
        assert threading.active_count() == before + 1
        del queue
        while threading.active_count() > before:
            time.sleep(0.01)

    await in_thread(work)


async def test_blocking_calls_in_their_own_loop_are_refused() -> None:
    client = Client("redis://127.0.0.1:1", retry_s=0.2)
    problems: list[str] = []

    async def wrong() -> None:
        try:
            client.queues()
        except RuntimeError as error:
            problems.append(str(error))

    await asyncio.to_thread(client.bridge.run, wrong())
    assert "use the asyncio client" in problems[0]
    with pytest.raises(
        Unreachable, match=r"no node of redis://127\.0\.0\.1:1 could be used within 0\.2 s"
    ):
        await asyncio.to_thread(client.queues)
    await asyncio.to_thread(client.close)


async def test_a_client_does_not_survive_a_fork(here: Site) -> None:
    def work() -> None:
        with Client(here.urls, spread=False) as client:
            client.queue("mail").put("x")
            real = os.getpid
            try:
                os.getpid = lambda: -1  # type: ignore[assignment]
                with pytest.raises(RuntimeError, match="before a fork"):
                    client.queue("mail").put("x")
            finally:
                os.getpid = real

    await in_thread(work)
