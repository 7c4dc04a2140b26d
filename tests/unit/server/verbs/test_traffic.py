"""R.TRAFFIC and R.TAP: what they answer, in which order, and what they refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors import doubles

from tidewarden.clock import SystemClock
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic, mac_of
from tidewarden.server.traffic.node_traffic import NodeTraffic
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.user_limits import TAPS_MAX


class CountingDoor(doubles.Door):
    """A door of a node that counts, where the test says what was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder(SystemClock())
        own = NodeTraffic(self.recorder, SystemClock())
        self.provide(traffic_of_cluster=ClusterTraffic("n0", own, mac_of("x"), dict))

    def put(self, queue: bytes, user: str = "app", failed: str = "", size: int = 100) -> None:
        self.recorder.note(user, "Q.PUT", queue, "10.0.0.1", size, 20, failed, 0.001)

    async def tapped(self) -> None:
        async with asyncio.timeout(20):
            while not self.recorder.taps.open:
                await asyncio.sleep(0)


@pytest.fixture
async def door() -> AsyncIterator[CountingDoor]:
    async with CountingDoor() as made:
        yield made


async def asked(door: CountingDoor, *words: str) -> Any:
    line = await door.dial()
    await line.call("HELLO", "3")
    return await line.call("R.TRAFFIC", *words)


async def test_who_sends_most_is_the_first(door: CountingDoor) -> None:
    for _ in range(3):
        door.put(b"mails")
    door.put(b"bills", "bob", "FULL", 10_000)
    found = await asked(door)
    assert [row[b"name"] for row in found[b"rows"]] == [b"mails", b"bills"]
    assert found[b"rows"][1] == {
        b"user": b"bob",
        b"verb": b"Q.PUT",
        b"kind": b"queue",
        b"name": b"bills",
        b"requests": 1,
        b"bytes_in": 10_000,
        b"bytes_out": 20,
        b"errors": 1,
        b"us": 1000,
        b"requests_per_s": 1.0,
    }
    assert (found[b"nodes"], found[b"unreachable"]) == ([b"n0"], [])
    assert found[b"total"][b"requests"] == 4


@pytest.mark.parametrize("sort", ["bytes", "errors"])
async def test_it_ranks_by_what_is_asked(door: CountingDoor, sort: str) -> None:
    for _ in range(3):
        door.put(b"mails")
    door.put(b"bills", "bob", "FULL", 10_000)
    found = await asked(door, "BY", "queue", "SORT", sort, "TOP", "1", "OVER", "start")
    assert [row[b"name"] for row in found[b"rows"]] == [b"bills"]
    assert b"user" not in found[b"rows"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("BY shoe", "BY is one of request, user, verb, queue, peer: found 'shoe'"),
        ("TOP 0", "TOP is from 1 to 100"),
        ("OVER hour", "OVER is one of minute, start"),
        ("NODE n9", "NOTFOUND There is no node 'n9'; there are n0, or all."),
        ("BY user BY verb", "BY is given twice"),
        ("MOST 5", "R.TRAFFIC has no option 'MOST'"),
    ],
)
async def test_what_cannot_be_asked_is_refused(door: CountingDoor, words: str, said: str) -> None:
    assert said in str(await asked(door, *words.split()))


async def test_a_tap_pushes_lines_before_its_reply(door: CountingDoor) -> None:
    line = await door.dial()
    await line.call("HELLO", "3")
    line.send("R.TAP QUEUE mails MS 300", "PING")
    await door.tapped()
    for queue in (b"mails", b"bills", b"mails"):
        door.put(queue)
    for _ in range(2):
        kind, text = await line.reply()
        assert kind == b"tap"
        assert json.loads(text)["name"] == "mails"
    end = {b"matched": 2, b"dropped": 0, b"shown": 2, b"lines": []}
    assert await line.reply() == end
    assert await line.reply() == b"PONG"
    assert not door.recorder.taps.open


async def test_under_resp2_the_lines_are_in_the_reply(door: CountingDoor) -> None:
    line = await door.dial()
    line.send("R.TAP USER app RATE 1/2 MS 200", "PING")
    await door.tapped()
    for _ in range(4):
        door.put(b"mails")
    found = await line.reply()
    assert found[:6] == [b"matched", 4, b"dropped", 0, b"shown", 2]
    assert [json.loads(one)["user"] for one in found[7]] == ["app", "app"]
    assert await line.reply() == b"PONG"


async def test_a_tap_ends_with_its_connection(door: CountingDoor) -> None:
    line = await door.dial()
    line.send("R.TAP MS 60000")
    await door.tapped()
    line.drop()
    async with asyncio.timeout(20):
        while door.recorder.taps.open:
            await asyncio.sleep(0)


async def silent_tap(door: CountingDoor, ms: int) -> tuple[Any, Any]:
    """A tap whose peer does not read, and the server's side of it."""
    line = await door.dial()
    await line.call("HELLO", "3")
    (peer,) = door.server.context.peers.connections
    line.send(f"R.TAP MS {ms}")
    await door.tapped()
    peer.pause_writing()
    return line, peer


async def test_a_peer_that_does_not_read_loses_lines_and_is_told(door: CountingDoor) -> None:
    line, peer = await silent_tap(door, 300)
    for _ in range(1500):
        door.put(b"mails")
    (tap,) = door.recorder.taps.open.values()
    while tap.dropped < 400:
        await asyncio.sleep(0)
        door.put(b"mails")
    peer.resume_writing()
    pushed = 0
    while isinstance(found := await line.reply(), list):
        pushed += 1
    assert found[b"shown"] == pushed
    assert found[b"matched"] == pushed + found[b"dropped"]


async def test_a_tap_whose_peer_never_reads_ends_in_its_time(door: CountingDoor) -> None:
    line, peer = await silent_tap(door, 100)
    door.put(b"mails")
    async with asyncio.timeout(20):
        while door.recorder.taps.open:
            await asyncio.sleep(0.01)
    peer.resume_writing()
    found = await line.reply()
    assert (found[b"matched"], found[b"dropped"], found[b"shown"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("USER app", "R.TAP needs MS ms, from 1 to 60000"),
        ("MS 60001", "R.TAP needs MS ms, from 1 to 60000"),
        ("MS 5 RATE 2/3", "RATE is 1/n, n from 1 to 1000000: found '2/3'"),
        ("MS 5 RATE 1/0", "RATE is 1/n"),
        ("MS soon", "MS must be an integer"),
    ],
)
async def test_a_tap_that_cannot_be_is_refused(door: CountingDoor, words: str, said: str) -> None:
    line = await door.dial()
    assert said in str(await line.call("R.TAP", *words.split()))


async def test_there_are_so_many_taps_and_none_in_a_transaction(door: CountingDoor) -> None:
    for _ in range(TAPS_MAX):
        (await door.dial()).send("R.TAP MS 60000")
    async with asyncio.timeout(20):
        while len(door.recorder.taps.open) < TAPS_MAX:
            await asyncio.sleep(0)
    line = await door.dial()
    assert str(await line.call("R.TAP", "MS", "5")).startswith("FULL This node has 4 taps")
    assert await line.call("MULTI") == b"OK"
    assert "cannot be part of a transaction" in str(await line.call("R.TAP", "MS", "5"))
    assert str(await line.call("EXEC")).startswith("EXECABORT")


async def test_a_node_that_counts_nothing_says_so() -> None:
    async with doubles.Door() as door:
        line = await door.dial()
        assert "counts no traffic" in str(await line.call("R.TRAFFIC"))
        assert "counts no traffic" in str(await line.call("R.TAP", "MS", "5"))
