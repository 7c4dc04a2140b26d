"""
The SDK's types as its users write them. Never run: mypy reads it
(tests/meta/test_client_typing.py).
"""

from __future__ import annotations

from typing import Any, assert_type

from tidewarden.client import (
    AsyncClient,
    AsyncQueue,
    AsyncTask,
    Client,
    Ending,
    Lock,
    NewTask,
    Page,
    Queue,
    Task,
    TaskInfo,
    Token,
    Worker,
)
from tidewarden.errors import Error

with Client(["redis://a", "redis://b"]) as client:
    queue = client.queue("mails")
    assert_type(client, Client)
    assert_type(queue, Queue)
    assert_type(
        queue.put(b"x", id="a", delay_ms=5, priority=1, if_exists="replace", wait_ms=5), str
    )
    assert_type(queue.put_json({"a": 1}, within_ms=5), str)
    assert_type(
        queue.put_many([b"x", "y", NewTask("z", "id", {"priority": 3})], priority=5), list[str]
    )
    queue.put("x", delay=5)  # type: ignore[call-arg]
    queue.put("x", delay_ms="5")  # type: ignore[arg-type]
    queue.put("x", if_exists="perhaps")  # type: ignore[arg-type]
    task = queue.take(wait_ms=5)
    assert_type(task, Task | None)
    if task is not None:
        with task as inside:
            assert_type(inside, Task)
            assert_type(task.payload, bytes)
            assert_type(task.fence, int)
            assert_type(task.lost, bool)
            assert_type(task.touch(5), int)
            assert_type(task.wait_lost(0.5), bool)
    assert_type(queue.take_many(5), list[Task])
    assert_type(queue.ack_many(queue.take_many(5)), list[bool])
    assert_type(queue.ack_many([("id", 5)]), list[bool])
    assert_type(client.take("a", "b", count=5), list[Task])
    assert_type(queue.wait("a", timeout_ms=5), Ending)
    assert_type(queue.peek("a"), TaskInfo)
    assert_type(queue.page("ready"), Page)
    queue.page("done")  # type: ignore[arg-type]
    assert_type(queue.kick(5, reason="x"), int)
    assert_type(queue.delete("a"), bool)
    assert_type(queue.stats(), dict[str, Any])
    assert_type(queue.move(None, "other", age_ms=5), int)
    assert_type(client.topics(), dict[str, list[str]])
    queue.configure(lease_ms=5, order="edf")
    with client.lock("report", lease_ms=5) as lock:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)
    assert_type(client.lock("report").acquire(5), bool)
    assert_type(client.schedules.get("nightly", count=5), dict[str, Any])
    assert_type(client.schedules.outlook(within_ms=5), dict[str, Any])
    assert_type(client.schedules.run("nightly", id="r1"), str)
    assert_type(client.token("shop/42", min_ttl_ms=5), Token)
    assert_type(client.tokens(["shop/42"], wait_ms=5), dict[str, Token | Error])
    assert_type(client.connect_url("shop/42", return_to="https://app.example.com/"), str)
    assert_type(client.connect_device("shop/42", scope="read"), dict[str, Any])


async def asynchronous() -> None:
    async with AsyncClient("redis://a") as client:
        queue = client.queue("mails")
        assert_type(queue, AsyncQueue)
        assert_type(await queue.put("x", delay_ms=5), str)
        task = await queue.take()
        assert_type(task, AsyncTask | None)
        if task is not None:
            async with task:
                await task.ack({"any": "thing"})
        async for one in queue.tasks():
            assert_type(one, AsyncTask)


worker = Worker(concurrency=5)


@worker.task("sync", backoff={OSError: 5_000}, bury_on=(ValueError,))
def sync_handler(task: Task) -> bytes:
    return task.payload


@worker.task("async", backoff=lambda error, attempt: 100 * attempt)
async def async_handler(task: AsyncTask) -> None:
    await task.release()


@worker.schedule("nightly", cron="0 3 * * *", zone="UTC", catchup="none", queue="sync", priority=3)
@worker.task("nightly")
async def nightly(task: AsyncTask) -> None:
    await task.ack()


worker.schedule(every_ms=5, delay=5)  # type: ignore[call-arg]
worker.schedule(every_ms=5, catchup="some")  # type: ignore[arg-type]
assert_type(worker.run(), int)
