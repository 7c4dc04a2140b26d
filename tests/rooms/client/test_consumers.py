"""What the SDK says of itself to nodes, and how a program sees and ends consumers."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from support.doors.consumer_nodes import consumer_nodes

import tidewarden
from tidewarden.client import AsyncClient, Client, Worker
from tidewarden.errors import NotFound, Timeout


async def test_a_worker_is_seen_and_ended(node: Any) -> None:
    made = [await node("n0"), await node("n1", boot=2)]
    async with consumer_nodes(made) as nodes:
        urls = [f"redis://127.0.0.1:{one.door.port}" for one in nodes]
        worker, begun = Worker(urls[1], name="mailer", grace_s=0.1), asyncio.Event()

        @worker.task("mails")
        async def send(_: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with AsyncClient(urls[0], spread=False) as client:
            await client.queue("mails").put("x", id="a")
            working = asyncio.create_task(worker.serve())
            await begun.wait()
            (row,) = (await client.queue("mails").holders())["holders"]
            assert (row["id"], row["name"], row["node"]) == ("a", "mailer", "n1")
            assert (row["library"], row["version"]) == ("tidewarden", tidewarden.__version__)
            assert (row["host"], row["pid"]) == (socket.gethostname()[:80], str(os.getpid()))
            (one,) = (await client.consumers(queue="mails"))["consumers"]
            assert (one["name"], one["tasks"], one["waits"]) == ("mailer", 1, ["mails"])
            assert (await client.queue("mails").holders(id="none"))["holders"] == []
            ended = await client.end_session(one["session"])
            assert (ended["released"], ended["unreachable"]) == (1, [])
            with pytest.raises(NotFound):
                await client.end_session(one["session"])
            assert await client.kill(name="nobody") == 0
            begun.clear()
            await begun.wait()  # it has another session, and goes on
            (again,) = (await client.consumers(user="default", queue="mails"))["consumers"]
            assert again["session"] != one["session"]
            assert await client.queue("mails").release_all(session=again["session"]) == 1
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def test_a_client_that_blocks_is_told_of_silent_nodes(node: Any) -> None:
    async with consumer_nodes([await node("n0")], away={"n1": ""}) as (one,):

        def look() -> None:
            with Client(f"redis://127.0.0.1:{one.door.port}", spread=False) as client:
                assert [lost["node"] for lost in client.consumers()["unreachable"]] == ["n1"]
                assert client.queue("mails").holders()["holders"] == []
                assert client.kill(user="nobody", node="n0") == 0
                with pytest.raises(Timeout, match="n1: no address of it is known"):
                    client.kill(user="nobody")

        await asyncio.to_thread(look)
