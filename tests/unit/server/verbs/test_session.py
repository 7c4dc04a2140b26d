"""``SESSION`` at the door: its forms, and what it refuses before the queue is asked."""

from __future__ import annotations

import pytest
from support.doors import doubles

Door = doubles.Door


@pytest.mark.parametrize(
    ("request_", "call", "reply"),
    [
        (("SESSION",), ("default", "", None), b"made"),
        (("session", "grace", "0"), ("default", "", 0), b"made"),
        (("SESSION", "GRACE", "5000"), ("default", "", 5000), b"made"),
        (("SESSION", "u-1"), ("default", "u-1", None), b"u-1"),
        (("SESSION", "u-1", "GRACE", "7"), ("default", "u-1", 7), b"u-1"),
    ],
)
async def test_what_reaches_the_queue(
    request_: tuple[str, ...], call: tuple[object, ...], reply: bytes
) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert await line.line() == b"$%d" % len(reply)
        assert await line.line() == reply
        assert door.queues.calls == [("join_session", *call)]


@pytest.mark.parametrize(
    "request_",
    [
        ("SESSION", ""),
        ("SESSION", b"\xff"),
        ("SESSION", "GRACE"),
        ("SESSION", "GRACE", "-1"),
        ("SESSION", "GRACE", "x"),
        ("SESSION", "u", "GRACE"),
        ("SESSION", "u", "v"),
        ("SESSION", "u", "GRACE", "1", "more"),
    ],
)
async def test_rubbish_is_refused(request_: tuple[str | bytes, ...]) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert (await line.line()).startswith(b"-BADARG")
        assert door.queues.calls == []


async def test_a_node_that_goes_down_lets_nobody_in() -> None:
    async with Door() as door:
        line = await door.dial()
        door.server.context.peers.draining = True
        line.send(("SESSION",))
        assert (await line.line()).startswith(b"-DRAINING")
