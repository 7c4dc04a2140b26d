"""The routes of schedules: what reaches them, what is said of what is wrong, and who may."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.doors.http_site import ALICE, site

from tidewarden.errors import NotFound
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.trigger import Spec

WHOLE: dict[str, Any] = {
    "name": "n/1", "queue": "mail", "kind": "cron", "expr": "0 3 * * *", "zone": "UTC", "catchup": "one", "next_ms": 5,
    "state": "active", "payload": b"run", "payload_bytes": 3,
}  # fmt: skip
LAST = {
    "id": "n/1:5", "how": "tick", "due_ms": 5, "put_ms": 6, "state": "done", "attempts": 0,
    "reason": "", "ended_ms": 9,
}  # fmt: skip
ODD = {"name": "odd", "queue": "q", "next_ms": 1, "state": "unreadable"}


@pytest.mark.parametrize(
    ("body", "spec", "task"),
    [
        ({"every_ms": 5000}, Spec.every(5000), TaskSpec(b"")),
        (
            {
                "cron": "0 3 * * *",
                "zone": "Europe/Berlin",
                "catchup": "all",
                "payload": "ä",
                "priority": 7,
                "lane": "l",
            },
            Spec.cron("0 3 * * *", "Europe/Berlin", "all"),
            TaskSpec("ä".encode(), priority=7, lane="l"),
        ),
        (
            {
                "at_ms": 1_800_000_000_000,
                "payload_base64": "/w==",
                "delay_ms": 1,
                "within_ms": 2,
                "ttl_ms": 9,
            },
            Spec.at(1_800_000_000_000),
            TaskSpec(b"\xff", delay_ms=1, within_ms=2, ttl_ms=9),
        ),
    ],
)
async def test_put(body: dict[str, Any], spec: Spec, task: TaskSpec) -> None:
    async with site() as subject:
        answer = await subject.ask(
            "PUT", "/v1/schedules/n%2F1", data=json.dumps({"queue": "mail", **body})
        )
        assert answer == (200, {"next_ms": 2**41})
        assert subject.door.schedules.calls == [("put", "n/1", spec, "mail", task)]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"every_ms": 5000}, "queue is missing"),
        ({"every_ms": 5000, "queue": 5}, "queue must be text"),
        ({"queue": "mail"}, "one of cron, every_ms, at_ms: found none of them"),
        ({"queue": "mail", "cron": "* * * * *", "at_ms": 5}, "found cron and at_ms"),
        ({"queue": "mail", "every_ms": "5000"}, "every_ms must be an integer of 10 or more"),
        ({"queue": "mail", "every_ms": 5}, "every_ms must be an integer of 10 or more: found 5"),
        (
            {"queue": "mail", "every_ms": 2**40},
            "every_ms is 1099511627776; milliseconds from 10 to",
        ),
        ({"queue": "mail", "cron": "x"}, "cron 'x' has 1 fields"),
        ({"queue": "mail", "cron": "* * * * *", "zone": "TZ"}, "zone 'TZ' is not a known"),
        ({"queue": "mail", "at_ms": 5, "zone": "UTC"}, "zone belongs to cron, not to at_ms"),
        ({"queue": "mail", "cron": 5}, "cron must be text"),
        ({"queue": "mail", "every_ms": 5000, "catchup": "some"}, "catchup"),
        ({"queue": "mail", "every_ms": 5000, "payload": {}}, "payload must be text"),
        (
            {"queue": "mail", "every_ms": 5000, "payload_base64": "%"},
            "payload_base64 must be base64",
        ),
        (
            {"queue": "mail", "every_ms": 5000, "payload": "", "payload_base64": ""},
            "payload and payload_base64 exclude each other",
        ),
        ({"queue": "mail", "every_ms": 5000, "id": "x"}, "There is no field 'id' here"),
        ({"queue": "mail", "every_ms": 5000, "lease_ms": None}, "lease_ms must be an integer"),
    ],
)
async def test_what_is_wrong_is_told_by_its_field(body: dict[str, Any], fault: str) -> None:
    async with site() as subject:
        status, answer = await subject.ask("PUT", "/v1/schedules/n", data=json.dumps(body))
        assert (status, answer["error"]) == (400, "BADARG")
        assert fault in answer["message"]
        status, answer = await subject.ask(
            "PUT", "/v1/schedules/n", data='{"queue": "_mail", "every_ms": 5000}'
        )
        assert (status, answer["error"]) == (403, "DENIED")
        assert not subject.door.schedules.calls


async def test_the_rooms_own_errors_name_the_field_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as subject:

        async def put(_name: str, _spec: Spec, _queue: str, task: TaskSpec) -> int:
            task.check(1024)
            return 1

        monkeypatch.setattr(subject.door.schedules, "put", put)
        body = {"queue": "mail", "every_ms": 5000, "priority": 100}
        status, answer = await subject.ask("PUT", "/v1/schedules/n", data=json.dumps(body))
        assert status == 400
        assert answer["message"].startswith("priority is 100")


async def test_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as subject:

        async def rows() -> list[dict[str, Any]]:
            return [
                WHOLE,
                {"name": "odd", "queue": "q", "next_ms": 1, "state": "unreadable"},
                WHOLE | {"payload": b"\xff"},
            ]

        async def one(name: str, count: int) -> dict[str, Any]:
            if name == "none":
                raise NotFound("there is no schedule 'none'")
            return WHOLE | {"next": [5, 6, 7][:count], "last": LAST}

        monkeypatch.setattr(subject.door.schedules, "list", rows)
        monkeypatch.setattr(subject.door.schedules, "get", one)
        shown = {name: value for name, value in WHOLE.items() if name != "expr"} | {
            "cron": "0 3 * * *",
            "payload": "run",
        }
        whole = shown | {"next": [5, 6, 7], "last": LAST}
        assert await subject.ask("GET", "/v1/schedules/n/1") == (200, whole)
        status, found = await subject.ask("GET", "/v1/schedules/n/1?count=1")
        assert (status, found["next"]) == (200, [5])
        status, found = await subject.ask("GET", "/v1/schedules")
        assert (status, found["schedules"][:2]) == (200, [shown, ODD])
        assert found["schedules"][2]["payload_base64"] == "/w=="
        assert await subject.ask("DELETE", "/v1/schedules/nightly") == (200, {"deleted": True})
        assert await subject.ask("POST", "/v1/schedules/nightly/pause") == (200, {"paused": True})
        assert await subject.ask("POST", "/v1/schedules/nightly/resume") == (200, {"next_ms": 7})
        for method, path in (("GET", "/v1/schedules/none"), ("DELETE", "/v1/schedules/none")):
            status, found = await subject.ask(method, path)
            assert (status, found["error"]) == (404, "NOTFOUND")
        for method, path in (
            ("GET", "/v1/schedules?x=1"),
            ("GET", "/v1/schedules/n?count=0"),
            ("GET", "/v1/schedules/n?count=101"),
            ("GET", "/v1/schedules:next?ms=0"),
            ("DELETE", "/v1/schedules/a?x=1"),
            ("GET", "/v1/schedules/%FF"),
        ):
            assert (await subject.ask(method, path))[0] == 400
        assert subject.door.schedules.calls == [
            ("delete", "nightly"), ("pause", "nightly"), ("resume", "nightly"), ("delete", "none"),
        ]  # fmt: skip


async def test_a_run_by_hand_has_an_id_of_the_callers_or_none() -> None:
    async with site() as subject:
        where = "/v1/schedules/n%2F1/run"
        assert await subject.ask("POST", where) == (200, {"id": "n/1:run:1"})
        assert await subject.ask("POST", where, data='{"id": "r"}') == (200, {"id": "n/1:run:r"})
        for body in ('{"id": ""}', '{"id": 5}', '{"key": "r"}', json.dumps({"id": "r" * 61})):
            status, answer = await subject.ask("POST", where, data=body)
            assert (status, answer["error"]) == (400, "BADARG"), body
        assert subject.door.schedules.calls == [("run", "n/1", ""), ("run", "n/1", "r")]


async def test_what_will_be_put_is_shown_as_far_as_the_user_may_see_it() -> None:
    async with site(users=True, rights=("schedule:night*", "schedule:pulse")) as subject:
        assert (await subject.ask("GET", "/v1/schedules:next"))[0] == 401
        status, found = await subject.ask("GET", "/v1/schedules:next", headers=ALICE)
        assert (status, [one["name"] for one in found["ticks"]]) == (200, ["nightly"])
        assert found["rates"] == [
            {"name": "pulse", "queue": "q", "next_ms": 5, "per_day": 86_400}
        ]  # fmt: skip
        assert subject.door.schedules.calls == [("outlook", 86_400_000)]


async def test_rights_are_of_the_schedule_and_of_the_queue() -> None:
    body = json.dumps({"every_ms": 5000, "queue": "mail"})
    async with site(users=True, rights=("schedule:night*", "put:mail")) as subject:
        assert (await subject.ask("GET", "/v1/schedules"))[0] == 401
        assert await subject.ask("GET", "/v1/schedules", headers=ALICE) == (
            200, {"schedules": [{"name": "nightly", "next_ms": 5}]},
        )  # fmt: skip
        assert (await subject.ask("PUT", "/v1/schedules/nightly", data=body, headers=ALICE))[
            0
        ] == 200
        other = json.dumps({"every_ms": 5000, "queue": "other"})
        status, answer = await subject.ask(
            "PUT", "/v1/schedules/nightly", data=other, headers=ALICE
        )
        assert (status, answer["error"]) == (403, "DENIED")
        assert "needs the right put:other, which the user admin does not have" in answer["message"]
        for method, path in (
            ("PUT", "daily"),
            ("DELETE", "daily"),
            ("GET", "daily"),
            ("POST", "daily/pause"),
            ("POST", "daily/resume"),
        ):
            status, answer = await subject.ask(
                method, f"/v1/schedules/{path}", data=body, headers=ALICE
            )
            assert (status, "schedule:daily" in answer["message"]) == (403, True), (method, path)
        assert [call[0] for call in subject.door.schedules.calls] == ["put"]
    async with site(users=True, rights=("schedule:daily",)) as subject:
        assert await subject.ask("GET", "/v1/schedules", headers=ALICE) == (200, {"schedules": []})
