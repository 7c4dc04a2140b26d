"""Tasks over HTTP, before a real queue and a real store."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors.http_store import HttpDoor, http_door

Q = "/v1/queues/mail"
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture
async def door(node: Any) -> AsyncIterator[HttpDoor]:
    made = await node()
    async with http_door(made.queues) as door:
        yield door


async def state(door: HttpDoor, task_id: str) -> tuple[str, int]:
    found = await door.good("GET", f"{Q}/tasks/{task_id}")
    return found["state"], found["attempts"]


async def test_put_take_ack(door: HttpDoor) -> None:
    assert await door.good("POST", f"{Q}/tasks", {"id": "a", "payload": "hällo"}) == {"id": "a"}
    (task,) = (await door.good("POST", f"{Q}/take"))["tasks"]
    assert (task["queue"], task["id"], task["payload"], task["attempt"]) == (
        "mail", "a", "hällo", 1,
    )  # fmt: skip
    seen = await door.good("GET", f"{Q}/tasks/a")
    assert (seen["state"], seen["lease"], seen["node"]) == ("leased", task["lease"], "")
    assert "session" not in seen
    assert await door.good("POST", f"{Q}/tasks/a/ack", {"lease": task["lease"]}) == {"acked": True}
    status, found = await door.call("POST", f"{Q}/tasks/a/ack", {"lease": task["lease"] + 1})
    assert (status, found["error"]) == (409, "NOTHELD")
    assert (await door.call("GET", f"{Q}/tasks/a"))[0] == 404
    assert await door.good("POST", f"{Q}/take") == {"tasks": []}


async def test_many_are_put_each_by_itself(door: HttpDoor) -> None:
    found = await door.good(
        "POST",
        f"{Q}/tasks",
        [
            {"id": "a", "payload_json": {"x": [1, None]}},
            {"id": "a", "if_exists": "fail"},
            {"id": "b", "delay_ms": 5, "at_ms": 5},
            {"id": "c", "payload_base64": base64.b64encode(b"\xff\x00").decode()},
        ],
    )
    assert [one.get("error") for one in found["tasks"]] == [None, "EXISTS", "BADARG", None]
    assert found["tasks"][2]["message"] == "delay_ms and at_ms exclude each other"
    tasks = (await door.good("POST", f"{Q}/take", {"count": 10}))["tasks"]
    assert {one["id"]: one.get("payload", one.get("payload_base64")) for one in tasks} == {
        "a": '{"x":[1,null]}',
        "c": "/wA=",
    }
    pairs = [{"id": one["id"], "lease": one["lease"]} for one in tasks]
    pairs[1]["lease"] += 100
    acked = (await door.good("POST", f"{Q}/ack", {"tasks": pairs}))["tasks"]
    assert [one["acked"] for one in acked] == [True, False]


async def test_bytes_as_they_are(door: HttpDoor) -> None:
    payload = bytes(range(256))
    path = f"{Q}/tasks?id=%C3%A4/1&priority=3"
    assert await door.good("POST", path, data=payload, headers=BYTES) == {"id": "ä/1"}
    url = f"http://127.0.0.1:{door.port}{Q}/take"
    accept = {"Accept": "application/octet-stream"}
    async with door.client.post(url, headers=accept) as response:
        assert (response.status, await response.read()) == (200, payload)
        assert response.content_type == "application/octet-stream"
        assert response.headers["Tidewarden-Id"] == "%C3%A4%2F1"
        assert response.headers["Tidewarden-Attempt"] == "1"
        lease = int(response.headers["Tidewarden-Lease"])
    async with door.client.post(url, headers=accept) as response:
        assert (response.status, await response.read()) == (204, b"")
    status, found = await door.call("POST", f"{Q}/take", {"count": 2}, headers=accept)
    assert (status, found["message"][:10]) == (400, "count is 2")
    await door.good("POST", f"{Q}/tasks/%C3%A4%2F1/ack", {"lease": lease})


async def test_a_body_without_a_type_is_json(door: HttpDoor) -> None:
    url = f"http://127.0.0.1:{door.port}{Q}/tasks"
    for headers in ({}, {"Content-Type": ""}):
        body = b'[{"id": "a", "payload": "1"}, {"id": "b"}]'
        async with door.client.post(
            url, data=body, headers=headers, skip_auto_headers=["Content-Type"]
        ) as response:
            assert response.status == 200
            assert [one["id"] for one in (await response.json())["tasks"]] == ["a", "b"]
        for task_id in ("a", "b"):
            await door.good("DELETE", f"{Q}/tasks/{task_id}")


async def test_the_ends_of_a_lease(door: HttpDoor) -> None:
    async def taken(**options: Any) -> dict[str, Any]:
        await door.good("POST", f"{Q}/tasks", {"id": "a", "if_exists": "replace", **options})
        (task,) = (await door.good("POST", f"{Q}/take", {"id": "a"}))["tasks"]
        return {"lease": task["lease"]}

    held = await taken()
    assert (await door.good("POST", f"{Q}/tasks/a/touch", held))["lease_end_ms"] > 0
    assert await door.good("POST", f"{Q}/tasks/a/release", held) == {"done": True}
    assert await state(door, "a") == ("ready", 0)
    await door.good("POST", f"{Q}/tasks/a/fail", await taken() | {"delay_ms": 60_000})
    assert await state(door, "a") == ("delayed", 1)
    await door.good("POST", f"{Q}/tasks/a/bury", await taken() | {"reason": "spam"})
    assert (await door.good("GET", f"{Q}/tasks/a"))["reason"] == "spam"
    for how in ("release", "fail", "bury", "touch", "ack"):
        status, found = await door.call("POST", f"{Q}/tasks/a/{how}", held)
        assert (status, found["error"]) == (409, "NOTHELD"), how


async def test_a_take_waits_and_its_client_finds_who_came_first(door: HttpDoor) -> None:
    first = asyncio.ensure_future(
        door.good("POST", "/v1/take", {"queues": ["other", "mail"], "wait_ms": 30_000})
    )
    second = asyncio.ensure_future(door.good("POST", f"{Q}/take", {"wait_ms": 1}))
    assert (await second) == {"tasks": []}
    await door.good("POST", f"{Q}/tasks", {"id": "a", "payload": "x"})
    assert [one["id"] for one in (await first)["tasks"]] == ["a"]


async def test_change_and_delete(door: HttpDoor) -> None:
    await door.good("POST", f"{Q}/tasks", {"id": "a", "payload": "x"})
    await door.good("PATCH", f"{Q}/tasks/a", {"payload": "y", "priority": 7})
    (task,) = (await door.good("POST", f"{Q}/take"))["tasks"]
    assert task["payload"] == "y"
    status, found = await door.call("PATCH", f"{Q}/tasks/a", {"payload": "z"})
    assert (status, found["error"]) == (409, "NOTHELD")
    assert "lease has to be its current number" in found["message"]
    await door.good("PATCH", f"{Q}/tasks/a?lease={task['lease']}", {"payload": "z"})
    status, found = await door.call("DELETE", f"{Q}/tasks/a")
    assert (status, found["error"]) == (409, "NOTHELD")
    assert await door.good("DELETE", f"{Q}/tasks/a?force=true") == {"done": True}
    assert (await door.call("DELETE", f"{Q}/tasks/a"))[0] == 404


async def test_the_result_of_a_task_is_waited_for(door: HttpDoor) -> None:
    await door.good("POST", f"{Q}/tasks", {"id": "a"})
    path = f"{Q}/tasks/a/result?wait_ms="
    assert await door.good("GET", path + "0") == {"state": "timeout"}
    waiting = asyncio.ensure_future(door.good("GET", path + "30000"))
    (task,) = (await door.good("POST", f"{Q}/take"))["tasks"]
    await door.good("POST", f"{Q}/tasks/a/ack", {"lease": task["lease"], "result_json": [1, 2]})
    assert await waiting == {"state": "done", "result": "[1,2]"}


async def test_queues_and_their_settings(door: HttpDoor) -> None:
    for name in ("a", "b/c", "d"):
        await door.good("POST", f"/v1/queues/{name.replace('/', '%2F')}/tasks", {"payload": "x"})
    page = await door.good("GET", "/v1/queues?count=2")
    assert ([one["queue"] for one in page["queues"]], page["after"]) == (["a", "b/c"], "b/c")
    page = await door.good("GET", "/v1/queues?after=b/c")
    assert ([one["queue"] for one in page["queues"]], page["after"]) == (["d"], "")
    found = await door.good("PATCH", "/v1/queues/b%2Fc", {"lease_ms": 5, "lane_rate": 0.5})
    assert (found["settings"]["lease_ms"], found["settings"]["lane_rate"]) == (5, 0.5)
    found = await door.good("GET", "/v1/queues/b%2Fc")
    assert (found["settings"]["lease_ms"], found["stats"]["ready"]) == (5, 1)
    assert (await door.call("GET", "/v1/queues/none"))[0] == 404
    status, found = await door.call("PATCH", "/v1/queues/d", {"shards": 257})
    assert (status, found["message"]) == (
        400,
        "shards must be an integer of 1 to 256: found 257.",
    )
