"""``L.*``: what reaches the locks, what is refused before, and the replies."""

from __future__ import annotations

import pytest
from support.doors import doubles
from support.waiting import eventually

Door = doubles.Door


@pytest.mark.parametrize(
    ("request_", "reply", "call"),
    [
        (("L.ACQUIRE", "a", "5"), b":137438953472", ("acquire", "1", "a", 5, 0, b"")),
        (("l.acquire", "ä", "5", "key", b"\x00\xff", "wait", "7"), b":137438953472", ("acquire", "1", "ä", 5, 7, b"\x00\xff")),
        (("L.ACQUIRE", "taken", "5"), b"$-1", ("acquire", "1", "taken", 5, 0, b"")),
        (("L.RENEW", "a", "9", "5"), b"+OK", ("renew", "a", 9, 5)),
        (("L.RENEW", "a", "1", "5"), b"-NOTHELD not held", ("renew", "a", 1, 5)),
        (("L.RELEASE", "a", "9"), b"+OK", ("release", "a", 9)),
        (("L.RELEASE", "a", "1"), b"-NOTHELD not held", ("release", "a", 1)),
        (("L.LIST",), b"*2", ("page", 100, "")),
        (("L.LIST", "AFTER", "0:x", "COUNT", "3"), b"*2", ("page", 3, "0:x")),
    ],
)  # fmt: skip
async def test_what_reaches_the_locks(
    request_: tuple[str | bytes, ...], reply: bytes, call: tuple[object, ...]
) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert await line.line() == reply
        assert door.locks.calls == [call]


async def test_a_lock_as_a_map_and_nothing_as_a_null() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("HELLO 3")
        line.send("PING", "L.PEEK a", "L.ACQUIRE taken 5", "QUIT")
        found = await line.rest()
        assert found.endswith(
            b"+PONG\r\n%2\r\n$4\r\nname\r\n$1\r\na\r\n$5\r\nfence\r\n:5\r\n_\r\n+OK\r\n"
        )


@pytest.mark.parametrize(
    "request_",
    [
        ("L.ACQUIRE",), ("L.ACQUIRE", "a"), ("L.ACQUIRE", "a", "x"), ("L.ACQUIRE", "a", "-5"), ("L.ACQUIRE", "a", "5", "WAIT"),
        ("L.ACQUIRE", "a", "5", "WAIT", "x"), ("L.ACQUIRE", "a", "5", "LEASE", "5"), ("L.ACQUIRE", b"\xff", "5"),
        ("L.ACQUIRE", "a", "5", "KEY", "k", "KEY", "k"), ("L.ACQUIRE", "a", "5", "KEY", ""), ("L.RENEW", "a", "5"),
        ("L.RENEW", "a", "x", "5"), ("L.RENEW", "a", "5", "5", "5"), ("L.RELEASE", "a"), ("L.RELEASE", "a", "9" * 17),
        ("L.RELEASE", "a", "1.5"), ("L.PEEK",), ("L.PEEK", "a", "b"), ("L.LIST", "x"), ("L.LIST", "COUNT", "x"),
    ],
)  # fmt: skip
async def test_what_does_not(request_: tuple[str | bytes, ...]) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert (await line.line()).startswith(b"-BADARG ")
        assert not door.locks.calls


async def test_an_acquire_that_waits_holds_up_its_connection_and_ends_with_it() -> None:
    async with Door(waiting_max=1) as door:
        line, other = await door.dial(), await door.dial()
        line.send("L.ACQUIRE waits 5 WAIT 1000", "PING")
        await eventually(lambda: door.locks.calls)
        assert (
            await other.ask("L.ACQUIRE waits 5 WAIT 1000")
            == b"-FULL This node has 1 requests that wait, as many as it may (limits.waiting_max)."
            b" Ask without waiting, or try another node."
        )
        assert await other.ask("L.ACQUIRE a 5") == b":137438953472"
        assert door.server.context.waiting == 1
        await line.close()
        await eventually(lambda: not door.server.context.waiting)


async def test_a_node_that_goes_down_hands_out_none() -> None:
    async with Door() as door:
        line = await door.dial()
        assert await line.ask("PING") == b"+PONG"
        door.server.context.peers.draining = True
        assert (await line.ask("L.ACQUIRE a 5")).startswith(b"-DRAINING ")
        assert await line.ask("L.RELEASE a 9") == b"+OK"


async def test_a_node_without_locks_says_so() -> None:
    async with Door() as door:
        door.provide(locks=None)
        line = await door.dial()
        assert await line.ask("L.ACQUIRE a 5") == b"-ERR This node serves no locks."
