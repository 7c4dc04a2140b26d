"""Leases of HTTP requests: who goes loses nothing, and what is held ends by its time or session."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.doors import doubles
from support.doors.http_store import HttpDoor, bearer, http_door
from support.providers import certificate

from tidewarden.queue import TaskSpec
from tidewarden.queue.sessions import session as sessions
from tidewarden.queue.sessions import unbound
from tidewarden.server.http.routes import locks as lock_routes
from tidewarden.server.http.routes import tasks as routes

Q = "/v1/queues/q"
LONG_MS = 600_000


@pytest.fixture
async def n0(node: Any) -> Any:
    return await node()


@pytest.fixture
async def door(n0: Any) -> AsyncIterator[HttpDoor]:
    async with http_door(n0.queues) as door:
        yield door


class Client:
    """A bare socket that asks for tasks and goes when it is told to."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made

    @classmethod
    async def dial(cls, door: HttpDoor, *, buffer: int = 0) -> Client:
        made = socket.socket()
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", door.port))
        return cls(made)

    def take(self, path: str = f"{Q}/take", **fields: Any) -> None:
        self.post(path, {"lease_ms": LONG_MS, **fields})

    def post(self, path: str, fields: Any) -> None:
        body = json.dumps(fields).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.send(head.encode() + body)

    def has_answer(self) -> bool:
        """Whether anything was sent to it by now."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def go(self, *, reset: bool) -> None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


async def state(door: HttpDoor, task_id: str = "a") -> tuple[str, int, int]:
    found = await door.queues.admin.peek("q", task_id)
    return found["state"], found["attempts"], found["losses"]


async def settles(door: HttpDoor, task_id: str, wanted: tuple[str, int, int]) -> None:
    async with asyncio.timeout(20):
        while await state(door, task_id) != wanted:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("path", [f"{Q}/take", "/v1/take"])
async def test_who_goes_while_its_take_waits_takes_nothing(
    door: HttpDoor, eventually: Any, reset: bool, path: str
) -> None:
    client = await Client.dial(door)
    client.take(path, wait_ms=60_000, **({} if path == f"{Q}/take" else {"queues": ["x", "q"]}))
    await eventually(lambda: len(door.queues.consumer.under_way) == 1)
    client.go(reset=reset)
    await eventually(lambda: not len(door.queues.consumer.under_way))
    await door.queues.put("q", TaskSpec(id="a"))
    assert await state(door) == ("ready", 0, 0)


@pytest.mark.parametrize("reset", [True, False])
async def test_whoever_goes_at_whatever_moment_loses_nothing(
    door: HttpDoor, eventually: Any, reset: bool
) -> None:
    """The client goes so many turns of the loop after the put; nobody reads what came."""
    outcomes = set()
    for turns in range(24):
        client = await Client.dial(door)
        client.take(wait_ms=60_000)
        async with asyncio.timeout(20):
            while len(door.queues.consumer.under_way) != 1:
                await asyncio.sleep(0)
        putting = asyncio.ensure_future(door.queues.put("q", TaskSpec(id=f"t{turns}")))
        for _ in range(turns):
            await asyncio.sleep(0)
        # What lies in the socket when it goes was delivered; nothing comes between.
        came = client.has_answer()
        client.go(reset=reset)
        await putting
        await eventually(lambda: not (door.transports() or len(door.queues.consumer.under_way)))
        wanted = ("leased", 1, 0) if came else ("ready", 0, 0)
        await settles(door, f"t{turns}", wanted)
        outcomes.add(wanted)
        await door.queues.bulk.purge("q")
    assert ("ready", 0, 0) in outcomes


@pytest.mark.parametrize("reset", [True, False])
async def test_tasks_of_an_answer_that_nobody_reads_go_back(
    door: HttpDoor, eventually: Any, reset: bool
) -> None:
    for n in range(12):
        await door.queues.put("q", TaskSpec(id=f"t{n}", payload=b"x" * 1_000_000))
    client = await Client.dial(door, buffer=4096)
    client.take(count=12)
    await eventually(lambda: any(one.get_write_buffer_size() > 0 for one in door.transports()))
    assert (await door.queues.admin.stats("q"))["leased"] == 12
    client.go(reset=reset)
    for n in range(12):
        await settles(door, f"t{n}", ("ready", 0, 0))
    assert door.queues.unbound.of("default").held == {}


async def test_tasks_that_come_as_the_client_goes_are_given_back(
    door: HttpDoor, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    client = await Client.dial(door)
    whole = routes._as_json

    gone = asyncio.Event()

    def going(tasks: Any) -> Any:
        assert len(tasks) == 1
        client.go(reset=True)
        gone.set()
        return whole(tasks)

    monkeypatch.setattr(routes, "_as_json", going)
    await door.queues.put("q", TaskSpec(id="a"))
    client.take()
    await asyncio.wait_for(gone.wait(), 20)
    await settles(door, "a", ("ready", 0, 0))
    assert door.queues.unbound.of("default").held == {}


@pytest.mark.parametrize("moment", ["claimed", "answered"])
async def test_a_lock_that_comes_as_the_client_goes_is_free(
    n0: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Cancelled in the turn of the loop in which it is acquired, or gone before the answer."""
    async with http_door(n0.queues, rooms={"locks": n0.queues.locks}) as door:
        client, gone = await Client.dial(door), asyncio.Event()
        acquire, respond = n0.queues.locks.acquire, lock_routes.respond

        def going(answer: Any) -> Any:
            client.go(reset=True)
            gone.set()
            return answer and respond(answer)

        def cancelling(*args: Any, **options: Any) -> asyncio.Future[int | None]:
            claim, job = acquire(*args, **options), asyncio.current_task()
            assert job is not None
            claim.add_done_callback(lambda _: (job.cancel(), going(None)))
            return claim

        with monkeypatch.context() as patched:
            if moment == "claimed":
                patched.setattr(n0.queues.locks, "acquire", cancelling)
            else:
                patched.setattr(lock_routes, "respond", going)
            client.take("/v1/locks/a/acquire")
            await asyncio.wait_for(gone.wait(), 20)
        async with asyncio.timeout(20):
            while (await door.call("GET", "/v1/locks/a"))[0] != 404:
                await asyncio.sleep(0.005)
        assert n0.queues.unbound.of("default").held == {}


@pytest.mark.parametrize("many", [False, True])
async def test_a_put_is_made_though_whoever_asked_for_it_has_gone(
    door: HttpDoor, monkeypatch: pytest.MonkeyPatch, eventually: Any, many: bool
) -> None:
    put, begun, go_on, done = door.queues.put, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> Any:
        begun.set()
        await go_on.wait()
        answer = await put(*args)
        done.set()
        return answer

    monkeypatch.setattr(door.queues, "put", slow)
    client = await Client.dial(door)
    client.post(f"{Q}/tasks", [{"id": "a"}] if many else {"id": "a"})
    await asyncio.wait_for(begun.wait(), 20)
    client.go(reset=True)
    await eventually(lambda: not door.transports())
    go_on.set()
    await asyncio.wait_for(done.wait(), 20)
    assert await state(door) == ("ready", 0, 0)


@pytest.mark.parametrize("size", [0, 1_000_000])
async def test_by_tls_likewise(n0: Any, tmp_path: Path, eventually: Any, size: int) -> None:
    """An answer is done when it was sent, and whoever goes after it keeps what it has."""
    async with http_door(n0.queues, tls=certificate.make(tmp_path)) as door:
        await door.queues.put("q", TaskSpec(id="a", payload=b"x" * size))
        fields = {"lease_ms": LONG_MS}
        (task,) = (await door.good("POST", f"{Q}/take", fields))["tasks"]
        assert len(task["payload"]) == size
        waiting = asyncio.ensure_future(door.good("POST", f"{Q}/take", {"wait_ms": 60_000}))
        await eventually(lambda: len(door.queues.consumer.under_way) == 1)
        waiting.cancel()
        await eventually(lambda: not len(door.queues.consumer.under_way))
        await door.client.close()
        await eventually(lambda: not door.transports())
        assert await state(door) == ("leased", 1, 0)


async def test_a_lease_outlives_its_connection_and_its_nodes_boot(
    door: HttpDoor, node: Any, eventually: Any
) -> None:
    for name in ("a", "b"):
        await door.queues.put("q", TaskSpec(id=name))
    taken = (await door.good("POST", f"{Q}/take", {"lease_ms": LONG_MS, "count": 2}))["tasks"]
    await door.client.close()
    await eventually(lambda: not door.transports())
    n1 = await node("n1")
    await n1.queues.scripts.run("queue.reap", "q", 0, [1, "n0", 1, 100])
    assert await state(door, "a") == await state(door, "b") == ("leased", 1, 0)
    async with http_door(n1.queues) as other:
        answers = await other.good(
            "POST",
            f"{Q}/ack",
            {"tasks": [{"id": one["id"], "lease": one["lease"]} for one in taken]},
        )
        assert [one["acked"] for one in answers["tasks"]] == [True, True]


async def test_a_lease_ends_by_its_time(door: HttpDoor) -> None:
    await door.queues.put("q", TaskSpec(id="a"))
    assert (await door.good("POST", f"{Q}/take", {"lease_ms": 1}))["tasks"]
    (again,) = (await door.good("POST", f"{Q}/take", {"wait_ms": 20_000}))["tasks"]
    assert again["attempt"] == 2


# --- sessions


async def made(door: HttpDoor, grace_ms: int = 1000, **more: Any) -> dict[str, str]:
    """The header of a new session."""
    found = await door.good("POST", "/v1/sessions", {"grace_ms": grace_ms}, **more)
    return {"Tidewarden-Session": found["session"]}


async def test_a_session_ends_when_nothing_names_it_for_its_grace(
    door: HttpDoor, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(unbound, "LINGER_S", 0.05)
    monkeypatch.setattr(unbound, "GRACE_MIN_MS", 1)
    header = await made(door, LONG_MS)
    await door.queues.put("q", TaskSpec(id="a"))
    fields = {"lease_ms": LONG_MS}
    (task,) = (await door.good("POST", f"{Q}/take", fields, headers=header))["tasks"]
    assert (await door.good("GET", f"{Q}/tasks/a"))["session"] == header["Tidewarden-Session"]
    await eventually(lambda: door.queues.sessions.counts()["attached"] == 0)
    assert await state(door) == ("leased", 1, 0), "the grace runs"
    uuid = header["Tidewarden-Session"]
    found = await door.good("PUT", f"/v1/sessions/{uuid}", {"grace_ms": 1000})
    assert found == {"session": uuid, "grace_ms": 1000}
    await door.good("POST", f"{Q}/tasks/a/touch", {"lease": task["lease"], "lease_ms": LONG_MS})
    await settles(door, "a", ("ready", 0, 1))
    for how in ("POST", f"{Q}/take"), ("PUT", f"/v1/sessions/{uuid}"):
        status, found = await door.call(*how, headers=header)
        assert (status, found["error"]) == (404, "NOTFOUND"), how


async def test_a_session_is_ended_at_once_and_its_waiting_takes_with_it(
    door: HttpDoor, eventually: Any
) -> None:
    header = await made(door, LONG_MS)
    await door.queues.put("q", TaskSpec(id="a"))
    await door.good("POST", f"{Q}/take", {"lease_ms": LONG_MS}, headers=header)
    uuid = header["Tidewarden-Session"]
    assert await door.good("DELETE", f"/v1/sessions/{uuid}") == {"done": True}
    assert await state(door) == ("ready", 0, 1)
    assert (await door.call("DELETE", f"/v1/sessions/{uuid}"))[0] == 404


async def test_a_session_goes_on_at_another_node(
    door: HttpDoor, node: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    header = await made(door, LONG_MS)
    n1 = await node("n1")
    async with http_door(n1.queues) as other:
        await other.queues.put("q", TaskSpec(id="a"))
        (task,) = (await other.good("POST", f"{Q}/take", headers=header))["tasks"]
        await door.good("POST", f"{Q}/tasks/a/ack", {"lease": task["lease"]}, headers=header)
        await other.queues.put("q", TaskSpec(id="b"))
        await other.good("POST", f"{Q}/take", headers=header)
    # its door has closed, and so left the session
    assert other.queues.sessions.counts()["attached"] == 0
    assert await state(door, "b") == ("leased", 1, 0)


async def test_a_session_is_its_users(n0: Any) -> None:
    users = (doubles.ADMIN, replace(doubles.ADMIN, name="eve"))
    async with http_door(n0.queues, users=users) as door:
        header = await made(door, headers=bearer())
        for user, status in ("admin", 200), ("eve", 404):
            found = await door.call("POST", f"{Q}/take", headers=bearer(user) | header)
            assert found[0] == status
        for wrong in "none", "", "x" * 500:
            status, found = await door.call(
                "POST", f"{Q}/take", headers=bearer() | {"Tidewarden-Session": wrong}
            )
            assert (status, found["error"]) == (400, "BADARG")
            assert "Tidewarden-Session is" in found["message"]
        status, found = await door.call("POST", "/v1/sessions", {"grace_ms": 0}, headers=bearer())
        assert found["message"] == "grace_ms must be an integer of 1000 to 3600000: found 0."


# --- limits


async def test_what_a_user_holds_is_bounded(
    door: HttpDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "HELD_MAX", 2)
    for n in range(4):
        await door.queues.put("q", TaskSpec(id=f"t{n}"))
    fields = {"lease_ms": LONG_MS, "count": 2}
    tasks = (await door.good("POST", f"{Q}/take", fields))["tasks"]
    status, found = await door.call("POST", f"{Q}/take", fields)
    assert (status, found["error"]) == (507, "FULL")
    assert "default holds 2 tasks" in found["message"]
    # acknowledged elsewhere, which only the store knows
    elsewhere = door.queues.open_session()
    assert await door.queues.ack(elsewhere, "q", [(tasks[0]["id"], tasks[0]["lease"])]) == [1]
    async with asyncio.timeout(20):
        while (await door.call("POST", f"{Q}/take", {"lease_ms": LONG_MS}))[0] != 200:
            await asyncio.sleep(0.05)


async def test_waiting_requests_leave_connections_for_others(n0: Any, eventually: Any) -> None:
    users = tuple(replace(doubles.ADMIN, name=name) for name in ("admin", "ben", "cid"))
    async with http_door(n0.queues, users=users, http_connections_max=8) as door:

        def waits(user: str) -> asyncio.Task[Any]:
            return asyncio.ensure_future(
                door.call("POST", f"{Q}/take", {"wait_ms": 60_000}, headers=bearer(user))
            )

        waiting = [waits("admin") for _ in range(4)]
        await eventually(lambda: len(door.queues.consumer.under_way) == 4)
        status, found = await waits("admin")
        assert (status, found["error"]) == (507, "FULL")
        assert found["message"] == (
            "The user admin has 4 HTTP requests that wait or stream at this node, where 2 of 6"
            " (three quarters of limits.http_connections_max) are free: the rest is for others"
            " (limits.user_share). Ask without waiting, or try another node."
        )
        waiting += [waits("ben"), waits("ben")]
        await eventually(lambda: len(door.queues.consumer.under_way) == 6)
        status, found = await waits("cid")
        assert (status, found["message"][:24]) == (507, "This node has 6 HTTP req")
        assert (await door.call("GET", "/v1/queues", headers=bearer("cid")))[0] == 200
        for one in waiting:
            one.cancel()
        await eventually(lambda: not len(door.queues.consumer.under_way))


async def test_a_node_that_drains_hands_out_nothing(door: HttpDoor, eventually: Any) -> None:
    waiting = asyncio.ensure_future(door.good("POST", f"{Q}/take", {"wait_ms": 60_000}))
    await eventually(lambda: len(door.queues.consumer.under_way) == 1)
    door.queues.end_waits()
    assert await waiting == {"tasks": []}
    for path in f"{Q}/take", "/v1/sessions":
        status, found = await door.call("POST", path)
        assert (status, found["error"]) == (503, "DRAINING"), path


async def test_waits_of_a_user_who_is_gone_end(n0: Any, eventually: Any) -> None:
    async with http_door(n0.queues, users=(doubles.ADMIN,)) as door:
        client = await Client.dial(door)
        body = b'{"wait_ms": 60000}'
        head = f"POST {Q}/take HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        secret = bearer()["Authorization"]
        client.socket.send(f"{head}Authorization: {secret}\r\n\r\n".encode() + body)
        await eventually(lambda: len(door.queues.consumer.under_way) == 1)
        door.server.reload(("admin",))
        await eventually(lambda: not len(door.queues.consumer.under_way))
        client.go(reset=False)
