"""``/v1/cluster`` before recording rooms."""

from __future__ import annotations

from typing import Any

import pytest
from support.doors.http_store import http_door
from support.doors.recording_rooms import RecordingQueues
from support.doors.recording_steering import RecordingSteering

PATH = "/v1/cluster"


@pytest.mark.parametrize(
    ("how", "body", "answer", "call"),
    [
        ("transfer", {}, {"leader": "n1"}, ("transfer", None)),
        ("transfer", {"node": "n2"}, {"leader": "n2"}, ("transfer", "n2")),
        ("join", {"node": "n3", "address": "h:1"}, {"version": 4}, ("join", "n3", "h:1")),
        ("leave", {"node": "n3"}, {"version": 5}, ("leave", "n3")),
        ("switchover", {}, {"primary": "n1"}, ("switchover", None)),
        ("recover", {}, {"node": "n1", "loss": "likely"}, ("choice", None)),
        (
            "recover",
            {"node": "n2", "accept_loss": True},
            {"node": "n2", "loss": "likely"},
            ("recover", "n2", False),
        ),
        (
            "recover",
            {"accept_loss": True, "begin_empty": True},
            {"node": "n1", "loss": "likely"},
            ("recover", None, True),
        ),
        ("confirm", {}, {"loss": "possible"}, ("confirm",)),
    ],
)
async def test_the_cluster_is_changed(how: str, body: Any, answer: Any, call: Any) -> None:
    steering = RecordingSteering()
    rooms = {"operations": steering, "stores": steering}
    async with http_door(RecordingQueues(), rooms=rooms) as door:
        assert await door.good("POST", f"{PATH}/{how}", body) == answer
        assert steering.calls == [call]


async def test_what_the_cluster_is_like() -> None:
    async with http_door(RecordingQueues(), rooms={"stores": RecordingSteering()}) as door:
        assert (await door.good("GET", PATH))["leader"] == "n0"
        assert await door.good("GET", f"{PATH}/discarded") == {
            "discarded": [{"path": "/d/store/discarded/1", "bytes": 7}]
        }
        status, found = await door.call("POST", f"{PATH}/backups")
        assert (status, found["message"]) == (500, "This node makes no backups.")
        status, found = await door.call("POST", f"{PATH}/transfer")
        assert (status, found["message"][:22]) == (500, "This node is a worker,")


async def test_where_stores_do_not_replicate() -> None:
    async with http_door(RecordingQueues()) as door:
        for how in "switchover", "recover", "confirm":
            status, found = await door.call("POST", f"{PATH}/{how}")
            assert (status, found["error"]) == (400, "BADARG")
        status, found = await door.call("POST", f"{PATH}/leave")
        assert found["message"] == "node is missing: text of 1 to 200 characters."
