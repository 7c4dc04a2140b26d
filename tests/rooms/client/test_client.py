"""
The client as a whole: takes that wait, takes that are called off, sessions that last, an end that
gives back.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.doors import doubles as server_doubles
from support.doors.client_harness import Site, site, url
from support.inspect import idle_of

from tidewarden.client import AsyncClient
from tidewarden.errors import BadArg, Error, NotFound
from tidewarden.scheduler.trigger import Spec

NODES = 2


async def test_a_lease_survives_the_connection_and_is_acknowledged_at_another_node(
    here: Site,
) -> None:
    proxy = here.proxied()
    async with AsyncClient([url(proxy.port), here.urls[1]], spread=False) as client:
        queue = client.queue("mail")
        await queue.put("x", id="a")
        async with await queue.take() as task:  # type: ignore[union-attr]
            await asyncio.to_thread(proxy.cut)
            await asyncio.sleep(0.3)
            assert (await queue.peek("a")).state == "leased"
            assert client.nodes.current().port == here.doors[1].port
        assert task.settled
        assert (await queue.wait("a", timeout_ms=0)).word == "done"


async def test_take_from_several_queues(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        await client.queue("b").put("2")
        await client.queue("a").put("1")
        tasks = await client.take("a", "b", count=5)
        assert [(task.queue, task.payload) for task in tasks] == [("a", b"1"), ("b", b"2")]
        with pytest.raises(BadArg, match="the name of a queue"):
            await client.take()


async def test_a_take_that_is_called_off_takes_nothing(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        queue = client.queue("mail")
        for turns in range(20):  # the put meets the take at every stage of its going
            waiting = asyncio.ensure_future(queue.take(wait_ms=20_000))
            while here.doors[0].server.context.waiting == 0:
                await asyncio.sleep(0)
            putting = asyncio.ensure_future(queue.put("x"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not waiting.cancel():
                await putting
                async with waiting.result():  # type: ignore[union-attr]
                    continue
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await putting
            task = await queue.take(wait_ms=10_000)
            assert task is not None
            await task.ack()


async def test_a_take_that_is_called_off_waits_at_the_node_no_longer(
    here: Site, eventually: Any
) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        context = here.doors[0].server.context
        waiting = asyncio.ensure_future(client.queue("mail").take(wait_ms=60_000))
        await eventually(lambda: context.waiting == 1)
        waiting.cancel()
        await eventually(lambda: context.waiting == 0, 10)  # sooner than its turn ends


async def test_connections_for_waiting_are_used_again(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        queue = client.queue("mail")
        for _ in range(3):
            assert await asyncio.gather(*(queue.take(wait_ms=20) for _ in range(10))) == [None] * 10
        assert len(idle_of(client)) == 8
        assert len(here.doors[0].server.context.peers.connections) <= 11


async def test_topics(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        assert await client.link("news", "mail")
        assert await client.link("news", "push")
        assert not await client.link("news", "push")
        await client.queue("news").put("x", id="a")
        tasks = await client.take("mail", "push", count=5)
        assert [(task.queue, task.payload) for task in tasks] == [("mail", b"x"), ("push", b"x")]
        assert await client.unlink("news", "push")
        assert await client.topics() == {"news": ["mail"]}
        assert (await client.queue("mail").stats(by_shard=True))["by_shard"][0]["leased"] == 1


async def test_whatever_a_node_answers(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as client:
        await client.queue("mail").put("x")
        assert await client.queues() == ["mail"]
        assert (await client.status())["node"] == "n0"
        assert await client.execute("ECHO", "ü") == "ü"
        with pytest.raises(Error, match="unknown command"):
            await client.execute("NO.SUCH")
        with pytest.raises(NotFound):
            await client.execute("Q.STATS", "nobody", again=True)
        assert repr(client).startswith("<AsyncClient redis://127.0.0.1")


async def test_a_close_gives_back_at_once_what_blocks_hold_and_ends_the_session(here: Site) -> None:
    async with AsyncClient(here.urls, spread=False) as other:
        queue = other.queue("mail")
        client = AsyncClient(here.urls, grace_ms=60_000, spread=False)
        await client.queue("mail").put("x", id="in-a-block")
        await client.queue("mail").put("x", id="by-itself")
        first, second = await client.queue("mail").take_many(2)
        await first.__aenter__()
        await client.close()
        await client.close()
        tasks = [await queue.take(wait_ms=10_000) for _ in range(2)]
        assert {task.id for task in tasks if task} == {first.id, second.id}
        assert (await queue.peek(first.id)).losses == 0
        assert (await queue.peek(second.id)).losses == 1


async def test_many_tokens_are_read_together(node: Any) -> None:
    users = (server_doubles.ADMIN,)
    async with site(node, 1, users=users) as here:
        address = here.urls[0].replace("redis://", "redis://admin:correct%20horse%20%25%20battery@")
        async with AsyncClient(address) as client:
            found = await client.tokens(["p/a", "p/nobody"], min_ttl_ms=5, wait_ms=7)
            assert isinstance(found["p/nobody"], NotFound)
            token = found["p/a"]
            assert not isinstance(token, Error)
            assert (token.access_token, token.state) == ("at-1", "fresh")
        assert here.doors[0].tokens.calls == [("get_many", ["p/a", "p/nobody"], 5, 7)]


async def test_a_link_to_a_consent(node: Any) -> None:
    users = (server_doubles.ADMIN,)
    async with site(node, 1, users=users) as here:
        address = here.urls[0].replace("redis://", "redis://admin:correct%20horse%20%25%20battery@")
        url, own = "https://auth.example.com/v1/connect/p/a?link=x", {"shop": "ä"}
        async with AsyncClient(address) as client:
            assert await client.connect_url("p/a") == url
            asked = {"return_to": "https://app.example.com/", "scope": "read write"}
            assert await client.connect_url("p/a", **asked, parameters=own) == url
            codes = await client.connect_device("p/a", scope="read", parameters=own)
            assert codes["user_code"] == "WDJB-MJHT"
        assert here.doors[0].tokens.calls == [
            ("connect", "p/a", "", "", None, "admin"),
            ("connect", "p/a", "https://app.example.com/", "read write", own, "admin"),
            ("device", "p/a", "read", own, "admin"),
        ]


async def test_schedules(here: Site, client: AsyncClient) -> None:
    schedules, calls = client.schedules, here.doors[0].schedules.calls
    cron = {"cron": "0 3 * * *", "zone": "Europe/Berlin", "catchup": "none"}
    for trigger in (cron, {"every_ms": 3_600_000}, {"at_ms": 2**41}):
        calls.clear()
        next_ms = await schedules.put(
            "nightly", "reports", "run", within_ms=5, priority=7, **trigger
        )
        assert next_ms == 2**41
        ((_, name, spec, queue, task),) = calls
        assert (name, queue, task.payload) == ("nightly", "reports", b"run")
        assert (task.within_ms, task.priority) == (5, 7)
        assert (
            spec
            == {
                "cron": lambda: Spec.cron("0 3 * * *", "Europe/Berlin", "none"),
                "every_ms": lambda: Spec.every(3_600_000),
                "at_ms": lambda: Spec.at(2**41),
            }[next(iter(trigger))]()
        )
    assert await schedules.list() == [{"name": "nightly", "next_ms": 5}]
    run_id = await schedules.run("nightly")
    assert run_id != await schedules.run("nightly"), "each call is a run of its own"
    assert await schedules.run("nightly", id="r1") == "nightly:run:r1"
    assert (await schedules.get("nightly", count=1))["next"] == [5]
    with pytest.raises(NotFound):
        await schedules.get("other")
    found = await schedules.outlook(within_ms=60_000)
    assert [one["name"] for one in found["ticks"]] == ["daily", "nightly"]
    assert (found["rates"][0]["per_day"], found["until_ms"]) == (86_400, 60_001)
    await schedules.pause("nightly")
    assert await schedules.resume("nightly") == 7
    assert await schedules.delete("nightly")
    assert not await schedules.delete("other")
    for wrong in ({}, {"cron": "0 3 * * *", "every_ms": 5}):
        with pytest.raises(BadArg, match="one of cron, every_ms and at_ms"):
            await schedules.put("nightly", "reports", "run", **wrong)
