"""Jobs at the beanstalkd door: put, reserved and ended, and the same tasks at other doors."""

from __future__ import annotations

import asyncio
from typing import Any

import greenstalk
import pytest
from support.doors.beanstalkd_site import BeanstalkdSite, beanstalkd_site
from support.waiting import in_thread

from tidewarden.queue.task import TaskSpec


async def test_a_stock_client_puts_and_works(site: BeanstalkdSite) -> None:
    def work() -> None:
        with greenstalk.Client(("127.0.0.1", site.server.port), encoding=None) as client:
            first = client.put(b"\x00\r\nput 0 0 0 0", ttr=30)
            job = client.reserve(timeout=10)
            assert (job.id, job.body) == (first, b"\x00\r\nput 0 0 0 0")
            client.touch(job)
            client.release(job, priority=7)
            job = client.reserve(timeout=10)
            client.bury(job)
            with pytest.raises(greenstalk.TimedOutError):
                client.reserve(timeout=0)
            assert client.peek(job.id).body == job.body
            client.delete(job)
            with pytest.raises(greenstalk.NotFoundError):
                client.peek(job.id)

    await in_thread(work)


async def test_the_smallest_priority_comes_first_and_of_one_the_first(
    site: BeanstalkdSite,
) -> None:
    talk = await site.dial()
    priorities = [5, 4_294_967_295, 0, 5, 1024, 0, 4_294_967_294, 5]
    put = [(priority, await talk.put(b"x", priority)) for priority in priorities]
    assert [(await talk.reserve())[0] for _ in put] == [number for _, number in sorted(put)]


async def test_a_released_job_has_its_place_by_its_new_priority(site: BeanstalkdSite) -> None:
    talk = await site.dial()
    numbers = [await talk.put(b"x", 10) for _ in range(3)]
    assert (await talk.reserve())[0] == numbers[0]
    assert await talk.ask(f"release {numbers[0]} 11 0") == b"RELEASED"
    assert [(await talk.reserve())[0] for _ in numbers] == [numbers[1], numbers[2], numbers[0]]


async def test_what_is_put_here_is_taken_elsewhere_and_the_reverse(site: BeanstalkdSite) -> None:
    queues = site.queues
    talk = await site.dial()
    await talk.ask("use mail;out")
    number = await talk.put(b"from here")
    session = queues.open_session()
    (task,) = await queues.take(session, ["mail:out"], wait_ms=10_000)
    assert (task.payload, int(task.id)) == (b"from here", number)
    assert await queues.ack(session, "mail:out", [(task.id, task.lease)]) == [1]
    assert await talk.ask(f"peek {number}") == b"NOT_FOUND"
    await queues.put("mail:out", TaskSpec(b"from there", id="order-7"))
    assert await talk.ask("watch mail;out") == b"WATCHING 2"
    number, body = await talk.reserve()
    assert body == b"from there"
    assert await talk.ask(f"delete {number}") == b"DELETED"
    assert (await queues.admin.stats("mail:out"))["total"] == 0
    await queues.close_session(session)


async def test_who_waits_gets_what_comes(site: BeanstalkdSite) -> None:
    worker, producer = await site.dial(), await site.dial()
    await worker.ask("watch other")
    worker.send(b"reserve\r\n")
    while not site.server.stats()["waiting"]:
        await asyncio.sleep(0)
    await producer.ask("use other")
    number = await producer.put(b"now")
    assert await worker.line() == b"RESERVED %d 3" % number


async def test_jobs_of_a_connection_that_goes_are_ready_again(site: BeanstalkdSite) -> None:
    gone, stays = await site.dial(), await site.dial()
    number = await gone.put()
    assert (await gone.reserve())[0] == number
    assert await stays.ask(f"delete {number}") == b"NOT_FOUND"
    await gone.close()
    assert (await stays.reserve())[0] == number


async def test_time_to_run_ends_with_a_warning(site: BeanstalkdSite) -> None:
    talk, other = await site.dial(), await site.dial()
    number = await talk.put(run_s=1)
    assert (await talk.reserve())[0] == number
    # all of its second is the last one
    assert await talk.ask("reserve-with-timeout 10") == b"DEADLINE_SOON"
    assert (await other.reserve())[0] == number
    assert await talk.ask(f"release {number} 0 0") == b"NOT_FOUND"
    assert await talk.ask(f"touch {number}") == b"NOT_FOUND"


async def test_who_closes_half_of_the_connection_waits_no_more(site: BeanstalkdSite) -> None:
    talk = await site.dial()
    talk.send(b"reserve\r\n")
    while not site.server.stats()["waiting"]:
        await asyncio.sleep(0)
    talk.writer.write_eof()
    assert await talk.line() == b"TIMED_OUT"
    assert await talk.line() == b""


async def test_any_node_finds_a_job_by_its_number(site: BeanstalkdSite, node: Any) -> None:
    async with beanstalkd_site((await node("n1")).queues) as other:
        here, there = await site.dial(), await other.dial()
        await here.ask("use a")
        number = await here.put(b"mine")
        assert await there.body(f"peek {number}") == (b"FOUND %d" % number, b"mine")
        assert await there.ask(f"delete {number}") == b"DELETED"
        await there.ask("use b")
        numbers = [await here.put(), await there.put(), await here.put()]
        assert sorted(numbers) == numbers


async def test_a_number_that_the_store_gave_out_twice_is_passed_by(
    site: BeanstalkdSite, valkey: Any
) -> None:
    talk = await site.dial()
    first = await talk.put(b"first")
    (key,) = valkey.client.keys("*:tubes")
    valkey.client.hset(key, "jobs", 0)  # as a failover may have it that lost the last writes
    assert await talk.put(b"second") > first
    assert (await talk.reserve())[1] == b"first"


async def test_watch_and_ignore(site: BeanstalkdSite) -> None:
    talk = await site.dial()
    assert await talk.ask("ignore default") == b"NOT_IGNORED"
    assert await talk.ask("watch a") == b"WATCHING 2"
    assert await talk.ask("watch b") == b"WATCHING 3"
    assert await talk.ask("watch b") == b"WATCHING 3"
    assert await talk.ask("ignore default") == b"WATCHING 2"
    assert await talk.ask("ignore default") == b"WATCHING 2"
    assert await talk.body("list-tubes-watched") == (b"OK", b"---\n- b\n- a\n")
    assert await talk.ask("list-tube-used") == b"USING default"


async def test_tubes_are_listed_the_oldest_first(site: BeanstalkdSite, node: Any) -> None:
    """Whichever node they got their first jobs at; those of other doors come last."""
    await site.queues.put("m", TaskSpec(id="made-elsewhere"))
    async with beanstalkd_site((await node("n1")).queues) as other:
        here, there = await site.dial(), await other.dial()
        for talk, tube in ((here, "z"), (there, "b"), (here, "k;l"), (there, "z"), (here, "a")):
            await talk.ask(f"use {tube}")
            await talk.put()
        await here.ask("watch l")
        for talk, last in ((here, "- l\n- m\n"), (there, "- m\n")):
            said = await talk.body("list-tubes")
            assert said == (b"OK", b"---\n- default\n- z\n- b\n- k;l\n- a\n" + last.encode())


class Noted:
    """Takes down what is told of requests, without the times."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []

    def note(self, *request: Any) -> None:
        self.requests.append(request[:-1])


async def test_each_request_is_noted_with_its_queue(node: Any) -> None:
    noted = Noted()
    async with beanstalkd_site((await node()).queues, traffic=noted) as site:
        talk = await site.dial()
        await talk.ask("use a;b")
        number = await talk.put(b"12345")
        await talk.ask("watch a;b")
        await talk.ask("ignore default")
        await talk.reserve()
        await talk.ask(f"delete {number}")
        await talk.ask("watch " + "+" * 70)
        await talk.ask("nonsense")
        answer = len(f"INSERTED {number}") + 2
        host = "127.0.0.1"
        assert noted.requests == [
            (None, "use", b"a:b", host, 6, 11, ""),
            (None, "put", b"a:b", host, 8, answer, ""),
            (None, "watch", b"a:b", host, 8, 12, ""),
            (None, "ignore", b"default", host, 13, 12, ""),
            (None, "reserve-with-timeout", b"a:b", host, 20, answer + 9, ""),
            (None, "delete", b"a:b", host, 6, 9, ""),
            (None, "watch", b"", host, 75, 12, "BADARG"),
        ]


@pytest.mark.parametrize(
    ("command", "answer"),
    [("delete {}", b"DELETED"), ("release {} 7 0", b"RELEASED"), ("bury {} 7", b"BURIED")],
)
async def test_what_the_store_did_not_hear_can_be_said_again(
    node: Any, store_proxy: Any, command: str, answer: bytes
) -> None:
    url = f"redis://127.0.0.1:{store_proxy.port}/0"
    async with beanstalkd_site((await node(url=url)).queues) as site:
        talk = await site.dial()
        await talk.put(b"mine")
        number, _ = await talk.reserve()
        lost = store_proxy.lose("data", "request", b"%019d" % number)
        said = await talk.ask(command.format(number))
        assert lost.happened.is_set()
        while said == b"INTERNAL_ERROR":
            said = await talk.ask(command.format(number))
        assert said == answer


async def test_a_tube_whose_number_a_failover_took_gets_another(
    site: BeanstalkdSite, node: Any, valkey: Any, store_proxy: Any
) -> None:
    url = f"redis://127.0.0.1:{store_proxy.port}/0"
    async with beanstalkd_site((await node("n1", url=url)).queues) as other:
        here, there = await other.dial(), await site.dial()
        await here.ask("use a")
        old = await here.put(b"old")
        # as if these had been the last writes, and were lost with a primary
        assert await here.ask(f"delete {old}") == b"DELETED"
        (key,) = valkey.client.keys("*:tubes")
        valkey.client.delete(key)
        catalog = other.queues.catalog
        before = catalog.reconnects
        store_proxy.cut()
        while catalog.reconnects == before:
            await asyncio.sleep(0.001)
        await there.ask("use b")
        number = await there.put(b"b")
        assert await here.body(f"peek {number}") == (b"FOUND %d" % number, b"b")
        again = await here.put(b"a")
        assert await there.body(f"peek {again}") == (b"FOUND %d" % again, b"a")
