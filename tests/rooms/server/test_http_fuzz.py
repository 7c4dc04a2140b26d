"""
Rubbish at the HTTP door, before a real queue and a real store.

Whatever is sent: a success, or a documented error word in JSON, no defect in the log, and another
connection's tasks come and go as ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.doors.http_store import HttpDoor, http_door
from support.doors.recording_steering import RecordingSteering

from tidewarden.errors import BY_CODE
from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.http.params import fields_of

LIMIT_S = 20.0
MESSAGE_MAX = 2000
WORDS = BY_CODE.keys() - {"ERR", "INTERNAL", "STOREDOWN", "CONFIG", "UNREACHABLE"}
NOUNS = ("queues", "take", "check", "topics", "locks", "sessions", "cluster")
NOT_HERE = ("backups", "holders")  # what this door has no room for
SERVED = [
    route
    for route in ROUTES.values()
    if route.path.startswith(tuple(f"/v1/{n}" for n in NOUNS))
    and not any(word in route.path for word in NOT_HERE)
]
KEYS = ("queue", "topic", "lock", "id", "session", "name")
NAMES = st.sampled_from(
    ["q", "a", "b/c", "_locks", "ä", "..", ".", "%", "x" * 201, "a b", "\0", "\x7f", "q\r\nX: y"]
) | st.text(max_size=6)
NUMBERS = st.sampled_from([0, 1, 5, -1, 2**41, 2**53, 2**64, 10**400, 0.5, 1e300])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
    | st.sampled_from(["keep", "a", "AAAA", "ready", "q", "x" * 300, "{}"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
DEEP = 50_000
RUBBISH = [b"", b"{", b"null", b"\xff", b"[" * DEEP, b'{"payload_json":' * DEEP, b'"\\ud800"']
HEADERS = {
    "Content-Type": ["application/octet-stream", "application/json", "text/plain; charset=x", ""],
    "Accept": ["application/octet-stream", "*/*", "x"],
    "Tidewarden-Session": ["x", "", "6f1c2f0e-6c0e-4b5a-9d2e-1d8b2d9b7b5a"],
    "Content-Encoding": ["gzip", "deflate", "br"],
}


def fields(kind: Any) -> list[str]:
    """Names that a body or query may have, and one that it may not."""
    try:
        return [*fields_of(kind), "x"]
    except TypeError:  # a union, or none
        return ["id", "payload", "payload_json", "delay_ms", "priority", "wait_ms", "x"]


@st.composite
def requests(draw: Any) -> tuple[str, str, bytes, dict[str, str]]:
    """A route, with names, parameters, a body and headers of which some are wrong."""
    route = draw(st.sampled_from(SERVED))
    path = route.path
    for key in KEYS:
        path = path.replace(f"{{{key}}}", quote(draw(NAMES).encode("utf-8", "replace"), safe=""))
    query = draw(
        st.dictionaries(
            st.sampled_from(fields(route.query)),
            st.sampled_from(["0", "1", "true", "%FF", "%00", "-1", "1e3", "%F0%9F%90%9F"]),
            max_size=2,
        )
    )
    query = "&".join(f"{name}={value}" for name, value in query.items())
    shape = st.dictionaries(st.sampled_from(fields(route.body)), VALUES, max_size=5)
    good = st.builds(lambda one: json.dumps(one).encode(), shape | st.lists(shape, max_size=3))
    body = draw(good | good | st.binary(max_size=20) | st.sampled_from(RUBBISH))
    headers = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=2, unique=True))
    return (
        route.method,
        f"{path}?{query}" if query else path,
        body,
        {name: draw(st.sampled_from(HEADERS[name])) for name in headers},
    )


@pytest.fixture
async def door(node: Any) -> AsyncIterator[HttpDoor]:
    made = await node()
    steering = RecordingSteering()
    rooms = {"locks": made.queues.locks, "operations": steering, "stores": steering}
    async with http_door(made.queues, rooms=rooms, wait_ms=5) as door:
        yield door


async def judged(door: HttpDoor, method: str, path: str, body: bytes, head: Any) -> None:
    status, found = await asyncio.wait_for(
        door.call(method, path, data=body, headers=head), LIMIT_S
    )
    if status in (200, 204):
        return
    assert isinstance(found, dict), found
    assert found["error"] in WORDS
    assert len(found["message"]) < MESSAGE_MAX
    assert status == BY_CODE[found["error"]].http_status or status in (400, 405)


@pytest.mark.thorough
async def test_rubbish_is_answered_and_others_are_served(
    door: HttpDoor, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()

    @settings(suppress_health_check=list(HealthCheck))
    @given(st.lists(requests(), min_size=1, max_size=12))
    def play(sent: list[Any]) -> None:
        for one in sent:
            work = asyncio.run_coroutine_threadsafe(judged(door, *one), loop)
            work.result(3 * LIMIT_S)

    with caplog.at_level(logging.ERROR, "tidewarden"):
        await asyncio.to_thread(play)
    assert not [record.getMessage() for record in caplog.records]
    await door.good("POST", "/v1/queues/well/tasks", {"id": "a"})
    (task,) = (await door.good("POST", "/v1/queues/well/take"))["tasks"]
    await door.good("POST", "/v1/queues/well/tasks/a/ack", {"lease": task["lease"]})
