"""Buried tasks, topics, locks and what steers queues, over HTTP before a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from support.doors.http_store import HttpDoor, http_door

from tidewarden.errors import StoreDown

Q = "/v1/queues/mail"


@pytest.fixture
async def door(node: Any) -> AsyncIterator[HttpDoor]:
    made = await node()
    async with http_door(made.queues, rooms={"locks": made.queues.locks}) as door:
        yield door


async def buried(door: HttpDoor, *ids: str, reason: str = "spam") -> None:
    await door.good("POST", f"{Q}/tasks", [{"id": one, "payload": one} for one in ids])
    for task in (await door.good("POST", f"{Q}/take", {"count": len(ids)}))["tasks"]:
        fields = {"lease": task["lease"], "reason": reason}
        await door.good("POST", f"{Q}/tasks/{task['id']}/bury", fields)


async def test_buried_tasks_are_seen_kicked_and_moved(door: HttpDoor) -> None:
    await buried(door, "a", "b", "c")
    await buried(door, "d", reason="ü" * 200)
    page = await door.good("GET", f"{Q}/buried?count=3")
    assert [(one["id"], one["reason"]) for one in page["tasks"]] == [
        ("a", "spam"), ("b", "spam"), ("c", "spam"),
    ]  # fmt: skip
    assert page["tasks"][0]["history"][0]["how"] == "bury"
    page = await door.good("GET", f"{Q}/buried?after={quote(page['after'])}")
    assert (page["tasks"][0]["id"], page["tasks"][0]["reason"][:100]) == ("d", "ü" * 100)
    assert await door.good("POST", f"{Q}/buried/kick", {"id": "a"}) == {"kicked": 1}
    assert await door.good("POST", f"{Q}/buried/kick", {"count": 9, "reason_prefix": "x"}) == {
        "kicked": 0,
        "left": 0,
    }
    for wrong in (
        {}, {"count": 1, "all": True}, {"id": "a", "count": 1}, {"all": False}, {"ids": []},
        {"ids": ["a"], "all": True}, {"ids": ["a"], "reason": "x"}, {"all": True, "payload": "x"},
        {"all": True, "reason": "x", "reason_prefix": "x"}, {"id": "a", "buried_ms": 5},
        {"id": "a", "payload": "x", "payload_base64": ""}, {"id": "a", "reason": ""},
    ):  # fmt: skip
        assert (await door.call("POST", f"{Q}/buried/kick", wrong))[0] == 400, wrong
    found = await door.good("GET", f"{Q}/buried/reasons")
    assert [(one["reason"][:4], one["tasks"]) for one in found["reasons"]] == [
        ("spam", 2), ("üüüü", 1),
    ]  # fmt: skip
    assert (found["tasks"], found["others"], found["more"]) == (3, 0, False)
    assert found["reasons"][0]["example"] == "c"
    moved = {"all": True, "to": "spam/2", "reason_prefix": "sp"}
    assert await door.good("POST", f"{Q}/buried/move", moved) == {"moved": 2, "left": 0}
    found = await door.good("GET", "/v1/queues/spam%2F2/tasks")
    assert [one["id"] for one in found["tasks"]] == ["b", "c"]
    status, found = await door.call("POST", f"{Q}/buried/move", moved | {"to": "_locks"})
    assert (status, found["error"]) == (403, "DENIED")
    assert await door.good("DELETE", f"{Q}/tasks/d") == {"done": True}


async def test_those_of_one_reason_or_some_are_dealt_with_and_the_rest_is_told(
    door: HttpDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await buried(door, *"abcdef")
    await buried(door, *"ghi", reason="spa")
    path = f"{Q}/buried"
    assert await door.good("POST", f"{path}/delete", {"ids": ["a", "none"]}) == {
        "deleted": 1, "left": 0,
    }  # fmt: skip
    assert await door.good("POST", f"{path}/kick", {"count": 2, "reason": "spam"}) == {
        "kicked": 2, "left": 3,
    }  # fmt: skip
    assert await door.good("POST", f"{path}/move", {"ids": ["d", "b"], "to": "dead"}) == {
        "moved": 1, "left": 0,
    }  # fmt: skip
    assert await door.good("POST", f"{path}/delete", {"all": True, "reason": "spa"}) == {
        "deleted": 3, "left": 0,
    }  # fmt: skip
    assert (await door.good("GET", f"{path}/reasons"))["tasks"] == 2

    async def away(*_: Any, **__: Any) -> int:
        raise StoreDown("cut off")

    monkeypatch.setattr(door.queues.buried, "left", away)
    assert await door.good("POST", f"{path}/delete", {"all": True}) == {"deleted": 2}, (
        "what was done is told, whatever is not known"
    )


async def test_a_buried_task_is_edited_and_put_again(door: HttpDoor) -> None:
    await buried(door, "a")
    path, task = f"{Q}/buried/kick", f"{Q}/tasks/a"
    since_ms = (await door.good("GET", task))["buried_ms"]
    edit = {"id": "a", "payload_json": {"to": "ada"}, "buried_ms": since_ms}
    assert await door.good("POST", path, edit) == {"kicked": 1}
    assert await door.good("POST", path, edit) == {"kicked": 0}, "it came twice"
    seen = await door.good("GET", task)
    assert (seen["state"], seen["payload"]) == ("ready", '{"to":"ada"}')
    status, found = await door.call("POST", path, {"id": "a", "payload": "x"})
    assert (status, found["error"]) == (409, "NOTHELD")
    assert "is not buried any more" in found["message"]
    (held,) = (await door.good("POST", f"{Q}/take"))["tasks"]
    status, found = await door.call("POST", path, {"id": "a", "payload": "x"})
    assert (status, found["error"], "is leased" in found["message"]) == (409, "NOTHELD", True)
    await door.good("POST", f"{task}/ack", {"lease": held["lease"]})
    status, found = await door.call("POST", path, {"id": "a", "payload": "x"})
    assert (status, found["error"]) == (404, "NOTFOUND")
    assert (await door.good("GET", f"{Q}/stats"))["total"] == 0


async def test_pages_are_searched(door: HttpDoor) -> None:
    await buried(door, "ab", "bc", "cd")
    await door.good("POST", f"{Q}/tasks", {"id": "json", "payload_json": {"user": {"id": 42}}})

    async def found(where: str) -> list[str]:
        page = await door.good("GET", f"{Q}/{where}")
        assert page["unread"] == 0
        assert page["looked"] >= len(page["tasks"])
        return [one["id"] for one in page["tasks"]]

    assert await found("buried?match=*b*") == ["ab", "bc"]
    assert await found("buried?match=*b*&count=1") == ["ab"]
    assert await found("tasks?state=buried&match=c*&match_in=id") == ["cd"]
    assert await found("buried?match=s*&match_in=reason&payloads=false") == ["ab", "bc", "cd"]
    assert await found("tasks?where=" + quote("$.user.id=42")) == ["json"]
    assert await found("tasks?where=" + quote("$.user.id=43")) == []
    page = await door.good("GET", f"{Q}/buried?payloads=false")
    assert [one.get("payload") for one in page["tasks"]] == [None] * 3
    assert "looked" not in page
    page = await door.good("GET", f"{Q}/buried?match=*b*&payloads=false")
    assert [one.get("payload") for one in page["tasks"]] == [None] * 2
    for wrong in ("match=", "match_in=lane", "where=a", "where=%24.a", "payloads=maybe", "in=id"):
        assert (await door.call("GET", f"{Q}/buried?{wrong}"))[0] == 400, wrong


async def test_a_queue_is_paused_released_purged_and_checked(door: HttpDoor) -> None:
    await door.good("POST", f"{Q}/tasks", [{"id": one} for one in "ab"])
    assert await door.good("POST", f"{Q}/pause", {"ms": 600_000}) == {"done": True}
    assert await door.good("POST", f"{Q}/take") == {"tasks": []}
    assert await door.good("POST", f"{Q}/resume") == {"done": True}
    assert len((await door.good("POST", f"{Q}/take"))["tasks"]) == 1
    assert await door.good("POST", f"{Q}/release-all") == {"released": 1}
    assert (await door.good("GET", f"{Q}/stats?by_shard=true"))["by_shard"][0]["ready"] == 2
    assert await door.good("POST", f"{Q}/purge", {"state": "buried"}) == {"purged": 0}
    assert await door.good("POST", f"{Q}/purge") == {"purged": 2}
    assert (await door.good("POST", f"{Q}/check", {"repair": True}))["queue"] == "mail"
    assert "mail" in [one["queue"] for one in (await door.good("POST", "/v1/check"))["queues"]]


async def test_topics_are_linked(door: HttpDoor) -> None:
    path = "/v1/topics/news/queues/"
    assert await door.good("PUT", path + "mail") == {"linked": True}
    assert await door.good("PUT", path + "mail") == {"linked": False}
    await door.good("PUT", path + "audit%2F1", {"expire_ms": 60_000, "capacity": 5})
    found = (await door.good("GET", "/v1/queues/audit%2F1"))["settings"]
    assert (found["expire_ms"], found["capacity"]) == (60_000, 5)
    topic = {"topic": "news", "queues": ["audit/1", "mail"]}
    assert await door.good("GET", "/v1/topics") == {"topics": [topic]}
    assert await door.good("GET", "/v1/topics/news") == topic
    await door.good("POST", "/v1/queues/news/tasks", {"id": "a"})
    assert (await door.good("GET", f"{Q}/tasks/a"))["state"] == "ready"
    status, found = await door.call("GET", "/v1/queues/news")
    assert (status, found["message"]) == (404, "news is a topic, and no queue: see /v1/topics")
    assert await door.good("DELETE", path + "mail") == {"unlinked": True}
    assert await door.good("DELETE", "/v1/topics/news") == {"unlinked": 1}
    assert await door.good("GET", "/v1/topics") == {"topics": []}
    assert (await door.call("DELETE", Q))[0] == 400, "it holds a task"
    assert await door.good("DELETE", f"{Q}?force=true") == {"dropped": 1}
    status, found = await door.call("GET", Q)
    assert (status, found["error"]) == (404, "NOTFOUND")
    await door.good("PATCH", Q, {"lease_ms": 5})
    assert (await door.good("GET", f"{Q}/stats"))["total"] == 0
    assert (await door.call("GET", "/v1/topics/none"))[0] == 404


async def test_a_lock_has_one_holder(door: HttpDoor) -> None:
    path = "/v1/locks/jobs%2Fnightly"
    fields = {"lease_ms": 600_000}
    fence = (await door.good("POST", f"{path}/acquire", fields))["fence"]
    assert await door.good("POST", f"{path}/acquire", fields) == {"fence": None}
    seen = await door.good("GET", path)
    assert (seen["name"], seen["fence"], seen["node"]) == ("jobs/nightly", fence, "")
    assert "session" not in seen
    assert [one["name"] for one in (await door.good("GET", "/v1/locks"))["locks"]] == [
        "jobs/nightly"
    ]
    waiting = asyncio.ensure_future(
        door.good("POST", f"{path}/acquire", fields | {"wait_ms": 60_000, "key": "k"})
    )
    held = {"fence": fence}
    assert (await door.good("POST", f"{path}/renew", held | fields))["lease_end_ms"] > 0
    assert await door.good("POST", f"{path}/release", held) == {"done": True}
    second = (await waiting)["fence"]
    assert second > fence
    assert await door.good("POST", f"{path}/acquire", fields | {"key": "k"}) == {"fence": second}
    for how, body in ("renew", held | fields), ("release", held):
        status, found = await door.call("POST", f"{path}/{how}", body)
        assert (status, found["error"]) == (409, "NOTHELD")
    status, found = await door.call("POST", f"{path}/acquire", {"lease_ms": 0})
    assert found["message"] == "lease_ms must be an integer of 1 to 2592000000: found 0."


async def test_a_lock_goes_with_its_session_and_is_free_when_its_asker_has_gone(
    door: HttpDoor, eventually: Any
) -> None:
    uuid = (await door.good("POST", "/v1/sessions", {"grace_ms": 600_000}))["session"]
    fields = {"lease_ms": 600_000}
    header = {"Tidewarden-Session": uuid}
    await door.good("POST", "/v1/locks/a/acquire", fields, headers=header)
    assert (await door.good("GET", "/v1/locks/a"))["session"] == uuid
    gone = asyncio.ensure_future(
        door.call("POST", "/v1/locks/a/acquire", fields | {"wait_ms": 60_000})
    )
    await eventually(lambda: door.queues.locks.waiting == 1)
    gone.cancel()
    await eventually(lambda: door.queues.locks.waiting == 0)
    await door.good("DELETE", f"/v1/sessions/{uuid}")
    assert (await door.call("GET", "/v1/locks/a"))[0] == 404
    assert (await door.good("POST", "/v1/locks/a/acquire", fields))["fence"] > 0


@pytest.mark.parametrize("turns", range(12))
async def test_a_lock_that_comes_as_its_asker_goes_is_free(
    door: HttpDoor, eventually: Any, turns: int
) -> None:
    """Cancelled so many turns of the loop after the hold before it was released."""
    locks = door.queues.locks
    holder = door.queues.open_session()
    fence = await locks.acquire(holder, "a", 600_000)
    session = door.queues.unbound.of("default")
    waiting = locks.acquire(session, "a", 600_000, wait_ms=60_000)
    await eventually(lambda: locks.waiting == 1)
    releasing = asyncio.ensure_future(locks.release(holder, "a", fence))
    for _ in range(turns):
        await asyncio.sleep(0)
    if not waiting.done():
        waiting.cancel()
    await releasing
    if waiting.cancelled():
        async with asyncio.timeout(20):
            while (await door.call("GET", "/v1/locks/a"))[0] != 404:
                await asyncio.sleep(0.005)
        await eventually(lambda: session.held == {})


async def test_a_queue_that_is_dropped_while_all_are_told_is_left_out(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await node()
    async with http_door(made.queues) as door:
        await buried(door, "a")
        await door.good("DELETE", f"{Q}?force=true")
        await door.good("PUT", "/v1/topics/news/queues/other", {})

        async def names() -> list[str]:
            return ["mail", "other"]

        monkeypatch.setattr(made.queues.catalog, "names", names)
        assert [one["queue"] for one in (await door.good("GET", "/v1/queues"))["queues"]] == [
            "other"
        ]
        found = await door.good("POST", "/v1/check", {})
        assert [one["queue"] for one in found["queues"]] == ["other"]
