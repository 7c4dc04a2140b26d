"""The SDK's queue against a real node: every verb, with the types that it promises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.doors.client_harness import Site

from tidewarden.client import AsyncClient, AsyncQueue, BatchError, Ending, NewTask
from tidewarden.errors import BadArg, Denied, Exists, Full, NotFound, NotHeld, TooBig


async def test_put_take_ack(queue: AsyncQueue) -> None:
    task_id = await queue.put(b"\x00\r\n", priority=10, attempts=3)
    task = await queue.take()
    assert task is not None
    assert (task.queue, task.id, task.payload, task.attempt) == ("mail", task_id, b"\x00\r\n", 1)
    assert task.fence == task.lease > 0
    assert 15_000 < task.lease_ms <= 30_000
    await task.ack()
    assert task.settled
    assert await queue.take() is None
    await task.ack()  # repeated within a minute: the same answer
    with pytest.raises(NotHeld):
        await task.release()


async def test_ids_of_ours_sort_and_a_put_of_the_same_id_is_one_task(queue: AsyncQueue) -> None:
    ids = [await queue.put(f"{n}") for n in range(5)]
    assert ids == sorted(ids)
    assert await queue.put("other", id=ids[0]) == ids[0]
    with pytest.raises(Exists):
        await queue.put("other", id=ids[0], if_exists="fail")
    await queue.put("other", id=ids[0], if_exists="replace")
    assert (await queue.peek(ids[0])).payload == b"other"
    assert (await queue.stats())["ready"] == 5


async def test_json(queue: AsyncQueue) -> None:
    for value in ({"a": [1, "ü"]}, "text", None, 5):
        await queue.put_json(value)
        async with await queue.take() as task:  # type: ignore[union-attr]
            assert task.json() == value


async def test_every_option_of_a_put_arrives(queue: AsyncQueue) -> None:
    await queue.put(
        "x",
        id="a",
        delay_ms=60_000,
        within_ms=90_000,
        priority=7,
        lease_ms=5000,
        attempts=2,
        backoff_ms=100,
        ttl_ms=80_000,
    )
    found = await queue.peek("a")
    assert (found.state, found.priority, found.deadline_ms - found.due_ms) == ("delayed", 7, 30_000)
    fields = found.fields
    assert (fields["lease_ms"], fields["attempts_max"], fields["backoff_ms"]) == (5000, 2, 100)
    assert fields["expires_ms"] - found.due_ms == 20_000
    with pytest.raises(BadArg, match="delay is no option"):
        await queue.put("x", delay=5)  # type: ignore[call-arg]
    with pytest.raises(BadArg, match=r"delay_ms is 0\.5"):
        await queue.put("x", delay_ms=0.5)  # type: ignore[arg-type]
    with pytest.raises(BadArg, match="exclude"):
        await queue.put("x", delay_ms=1, at_ms=1)


@pytest.mark.thorough
async def test_put_many_and_ack_many(queue: AsyncQueue) -> None:
    given: list[bytes | NewTask] = [b"%d" % n for n in range(1200)]
    given.append(NewTask(b"own", "own", {"priority": 1}))
    ids = await queue.put_many(given, priority=60)
    assert len(set(ids)) == 1201
    assert ids[-1] == "own"
    tasks = [task for _ in range(2) for task in await queue.take_many(1000, wait_ms=100)]
    assert tasks[0].id == "own"
    assert [task.payload for task in tasks[1:]] == given[:-1]
    tasks[3].lease += 1
    answers = await queue.ack_many([*tasks, ("nobody", 5)])
    assert [place for place, done in enumerate(answers) if not done] == [3, 1201]
    assert tasks[0].settled
    assert not tasks[3].settled
    assert await queue.ack_many([]) == []
    assert await queue.put_many([]) == []


async def test_a_batch_says_what_was_refused(queue: AsyncQueue) -> None:
    with pytest.raises(BatchError, match="1 of 3 were refused; the first: TOOBIG") as caught:
        await queue.put_many([NewTask("a", "a"), b"x" * (2**20 + 1), NewTask("c", "c")])
    assert caught.value.answers[::2] == ["a", "c"]
    assert isinstance(caught.value.answers[1], TooBig)


async def test_take_waits_and_takes_one_alone(queue: AsyncQueue) -> None:
    waiting = asyncio.ensure_future(queue.take(wait_ms=20_000, lease_ms=1234))
    await queue.put("later", delay_ms=50)
    task = await asyncio.wait_for(waiting, 20)
    assert task is not None
    assert task.lease_ms == 1234
    await queue.put("a", id="a")
    await queue.put("b", id="b")
    other = await queue.take(id="b")
    assert other is not None
    assert other.id == "b"
    assert await queue.take(id="b") is None


async def test_the_endless_iterator(queue: AsyncQueue) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    seen = []
    async for task in queue.tasks():
        async with task:
            seen.append(task.payload)
        if len(seen) == 3:
            break
    assert seen == [b"1", b"2", b"3"]


async def test_by_id_and_lease(queue: AsyncQueue) -> None:
    await queue.put_many([NewTask(b"", name) for name in "abcde"])
    tasks = {task.id: task.lease for task in await queue.take_many(5)}
    assert await queue.touch("a", tasks["a"], 60_000) > 0
    await queue.ack("a", tasks["a"], {"n": 1})
    await queue.release("b", tasks["b"], reason="not mine")
    await queue.fail("c", tasks["c"], 60_000, "no")
    await queue.bury("d", tasks["d"], "bad")
    assert (await queue.peek("b")).state == "ready"
    assert (await queue.peek("c")).reason == "no"
    assert (await queue.peek("d")).state == "buried"
    with pytest.raises(NotHeld):
        await queue.fail("e", tasks["e"] + 1)
    assert await queue.wait("a", timeout_ms=0) == Ending("done", b'{"n":1}')


async def test_looking_and_steering(queue: AsyncQueue) -> None:
    await queue.put_many([NewTask(b"", f"t{n}") for n in range(5)])
    page = await queue.page("ready", count=2)
    names = [task.id for task in page.tasks]
    while page.cursor:
        page = await queue.page("ready", count=2, after=page.cursor)
        names += [task.id for task in page.tasks]
    assert sorted(names) == [f"t{n}" for n in range(5)]
    await queue.update("t0", payload=b"new", priority=3)
    assert ((await queue.peek("t0")).payload, (await queue.peek("t0")).priority) == (b"new", 3)
    with pytest.raises(NotFound):
        await queue.update("nobody", priority=3)
    with pytest.raises(NotFound):
        await queue.peek("nobody")
    assert await queue.delete("t1") is True
    assert await queue.delete("t1") is False
    await queue.pause()
    assert await queue.take() is None
    await queue.resume()
    task = await queue.take()
    assert task is not None
    with pytest.raises(NotHeld):
        await queue.delete(task.id)
    assert await queue.delete(task.id, force=True)
    await queue.configure(lease_ms=7000, capacity=3)
    assert (await queue.settings())["lease_ms"] == 7000
    with pytest.raises(Full):
        await queue.put("x")
    assert (await queue.check())["problems"] == 0
    held = await queue.take_many(2)
    assert await queue.release_all() == len(held)
    assert await queue.purge("ready") == 3


async def test_the_buried(queue: AsyncQueue) -> None:
    await queue.put_many([NewTask(b"", f"t{n}") for n in range(4)])
    for task in await queue.take_many(4):
        await task.bury(f"reason {task.id}")
    assert await queue.kick(id="t0") == 1
    assert await queue.kick(10, reason="reason t1") == 1
    assert await queue.kick(10, reason="no such") == 0
    assert await queue.kick(None, age_ms=60_000) == 0
    assert (await queue.peek("t2")).fields["history"][0]["reason"] == "reason t2"
    assert await queue.kick(None, reason_is="reason") == 0
    assert await queue.move(10, "other", reason_is="reason t2") == 1
    assert await queue.move(None, "other", reason="reason") == 1
    assert (await queue.client.queue("other").stats())["total"] == 2


async def test_waiting_for_the_end(queue: AsyncQueue) -> None:
    task_id = await queue.put("x")
    assert (await queue.wait(task_id, timeout_ms=20)).word == "timeout"
    waiting = asyncio.ensure_future(queue.wait(task_id))
    task = await queue.take()
    assert task is not None
    await task.ack("forty-two")
    assert await asyncio.wait_for(waiting, 20) == Ending("done", b"forty-two")
    assert (await queue.wait("nobody")).word == "unknown"


async def test_refusals_have_their_classes(queue: AsyncQueue) -> None:
    with pytest.raises(Denied):
        await queue.client.queue("_tokens:x").put("x")
    with pytest.raises(BadArg):
        await queue.client.queue("no blanks").put("x")
    with pytest.raises(NotFound):
        await queue.client.queue("never-used").stats()


@pytest.mark.parametrize("payload", [{"x": 1}, 7, None, ["a"]])
async def test_a_payload_that_is_neither_bytes_nor_text_is_told_of_put_json(
    here: Site, payload: Any
) -> None:
    async with AsyncClient(here.urls) as client:
        queue = client.queue("mails")
        for put in (
            queue.put(payload),
            queue.put_many([payload]),
            queue.put_many([NewTask(payload)]),
        ):
            with pytest.raises(
                TypeError, match=r"the payload is \w+; allowed is bytes or str: put_json"
            ):
                await put


async def test_the_buried_are_searched_edited_and_purged(queue: AsyncQueue) -> None:
    await queue.put_many([NewTask(f'{{"n": {n}}}', f"t{n}") for n in range(6)])
    for task in await queue.take_many(6):
        await task.bury("odd" if int(task.id[1:]) % 2 else "even")
    page = await queue.page("buried", count=2, match="odd", match_in="reason")
    assert ([task.id for task in page.tasks], page.looked > 2, page.unread) == (
        ["t1", "t3"], True, 0,
    )  # fmt: skip
    found = [task.id async for task in queue.search("buried", match="*n*", where="$.n=4")]
    assert found == ["t4"]
    since_ms = (await queue.peek("t4")).fields["buried_ms"]
    assert await queue.put_again("t4", "better", buried_ms=since_ms) is True
    assert await queue.put_again("t4", "better", buried_ms=since_ms) is False
    with pytest.raises(NotHeld, match="not buried any more"):
        await queue.put_again("t4", "other")
    task = await queue.take()
    assert task is not None
    assert task.text == "better"
    with pytest.raises(NotHeld, match="is leased"):
        await queue.put_again("t4", "other")
    await task.ack()
    with pytest.raises(NotFound):
        await queue.put_again("t4", "other")
    assert await queue.purge("buried", count=1, reason_is="odd") == 1
    assert await queue.purge("buried", reason="od") == 2
    assert [task.id async for task in queue.search("buried", match="*")] == ["t0", "t2"]
