"""Verbs that a further process passes on to the first: both doors are here, in one process."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import hiredis
import msgspec
import pytest
from support.doors import doubles
from support.inspect import begun_count_of
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.errors import Draining
from tidewarden.server.relay import relayed
from tidewarden.server.resp import relay_line as relay_module
from tidewarden.server.resp.relay_line import LineSender
from tidewarden.server.resp.server import RespServer
from tidewarden.server.services import Services
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic, mac_of
from tidewarden.server.traffic.node_traffic import NodeTraffic
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.server.verbs.table import COMMANDS


class FurtherDoor(doubles.Door):
    """A door whose lines end at ``first``."""

    def __init__(self, first: Any) -> None:
        super().__init__(users=first.config.users)
        self.first = first
        self.handed: list[tuple[str | None, int]] = []
        self.taken: list[asyncio.Task[Any]] = []
        self.server = RespServer(
            self.config, Services(self.queues, self.cluster), SystemClock(),
            commands=relayed(COMMANDS), hand_over=self.hand_over,
        )  # fmt: skip

    async def hand_over(
        self, end: socket.socket, user: str | None, resp: int, address: str
    ) -> None:
        assert address.startswith("127.0.0.1:")
        self.handed.append((user, resp))
        attaching = self.first.server.attach(end.dup(), user, resp, address)
        self.taken.append(asyncio.ensure_future(attaching))


@pytest.fixture
async def doors() -> AsyncIterator[tuple[Any, FurtherDoor]]:
    async with doubles.Door(users=(doubles.ADMIN,)) as first, FurtherDoor(first) as further:
        yield first, further


def test_only_what_the_first_process_alone_knows_is_relayed() -> None:
    table = relayed(COMMANDS)
    moved = {name for name in COMMANDS if table[name].handler is not COMMANDS[name].handler}
    of_the_first = {
        name
        for name, command in COMMANDS.items()
        if command.name[:2] in ("P.", "R.", "S.", "T.", "V.") and command.group != "later"
    }
    for name in ("INFO", "L.PEEK", "Q.HOLDERS", "CLIENT", "SESSION"):
        of_the_first |= {name.encode(), name.lower().encode()}
    assert moved == of_the_first
    assert len(moved) > 50
    for name, command in COMMANDS.items():
        assert table[name].permission is command.permission
        assert table[name].level == command.level


async def test_requests_go_through_as_they_came_and_replies_as_they_are(
    doors: tuple[Any, FurtherDoor],
) -> None:
    first, further = doors
    line = await further.dial()
    assert (await line.ask("T.STATS")).startswith(b"-NOAUTH")
    assert further.handed == []
    assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
    line.send("T.REFRESH p/a", "PING", "T.REFRESH p/b", "T.GET p/nobody", "T.REFRESH p/c", "QUIT")
    reader, found = hiredis.Reader(), []
    reader.feed(await line.rest())
    while (reply := reader.gets()) is not False:
        found.append(reply)
    assert [str(reply).partition(" ")[0] for reply in found] == [
        "b'OK'", "b'PONG'", "b'OK'", "NOTFOUND", "b'OK'", "b'OK'",
    ]  # fmt: skip
    assert [call[1] for call in first.tokens.calls] == ["p/a", "p/b", "p/nobody", "p/c"]
    assert first.server.own_stats()["requests_total"]["T.REFRESH"] == 3
    await eventually(lambda: not first.server.context.peers.relayed)


async def test_a_line_is_the_users_and_ends_with_the_peer(doors: tuple[Any, FurtherDoor]) -> None:
    first, further = doors
    line = await further.dial()
    assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
    assert (await line.ask("R.STATUS")).startswith(b"*")
    await eventually(lambda: len(first.server.context.peers.relayed) == 1)
    assert first.server.own_stats()["connections"] == 0
    line.send("HELLO 3", "R.STATUS")
    await eventually(lambda: further.handed == [("admin", 2), ("admin", 3)])
    await line.close()
    await eventually(
        lambda: (
            not first.server.context.peers.relayed and not further.server.context.peers.connections
        )
    )


async def test_a_line_is_cut_whose_peer_goes_while_it_is_opened() -> None:
    ends: list[socket.socket] = []

    async def hand_over(end: socket.socket, *_peer: Any) -> None:
        ends.append(end.dup())
        asyncio.get_running_loop().call_soon(line.close)

    line = relay_module.RelayLine(hand_over, "admin", 2, "127.0.0.1:1")
    with pytest.raises(Draining):
        await line.ask([b"PING"], AsyncMock())
    with ends[0] as end:
        end.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(end, 1) == b""


async def test_a_first_process_that_goes_down_is_said(doors: tuple[Any, FurtherDoor]) -> None:
    first, further = doors
    line = await further.dial()
    await line.ask("AUTH", "admin", doubles.SECRET)
    assert (await line.ask("S.LIST")).startswith(b"*")
    await eventually(lambda: first.server.context.peers.relayed)
    for connection in list(first.server.context.peers.relayed):
        connection.abort()
    rest = line.ask("S.LIST")
    async with asyncio.timeout(20):
        while not (reply := await rest).startswith(b"-DRAINING"):
            rest = line.line()
    assert b"going down" in reply
    await line.close()


async def test_a_first_process_that_is_behind_is_waited_for(doors: tuple[Any, FurtherDoor]) -> None:
    """
    The socket between the two is full for a moment: the peers' requests are answered later, and
    nobody is told to go.
    """
    first, further = doors
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setblocking(False)
    further.server.context.hand_over = LineSender(ours)
    full = 0
    try:
        while ours.send(b"x" * 1000):
            full += 1
    except BlockingIOError:
        assert full
    lines = [await further.dial() for _ in range(3)]
    for line in lines:
        assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        line.send("S.LIST")
    gone = await further.dial()
    assert await gone.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
    gone.send("S.LIST")
    await eventually(
        lambda: (
            sum(
                begun_count_of(connection)
                for connection in further.server.context.peers.connections
            )
            == 4
        )
    )
    gone.drop()
    for _ in range(full):
        assert theirs.recv(2000)[:1] == b"x"
    ended = []
    while len(ended) < 3:
        await asyncio.sleep(0.005)
        try:
            message, fds, _, _ = socket.recv_fds(theirs, 2000, 1)
        except BlockingIOError:
            continue
        spoken = msgspec.json.decode(message)["line"]
        ended.append(await first.server.attach(socket.socket(fileno=fds[0]), **spoken))
    for line in lines:
        assert (await line.line()).startswith(b"*")
    theirs.close()
    last = await further.dial()
    assert await last.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
    assert (await last.ask("S.LIST")).startswith(b"-DRAINING"), "now it has gone"
    ours.close()


async def test_out_of_files(
    doors: tuple[Any, FurtherDoor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    _, further = doors
    line = await further.dial()
    assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
    monkeypatch.setattr(relay_module.socket, "socketpair", none_left)
    assert (await line.ask("S.LIST")).startswith(b"-FULL This process has as many files open")


async def test_a_tap_pushes_through_the_line_and_ends_with_its_peer(
    doors: tuple[Any, FurtherDoor],
) -> None:
    first, further = doors
    recorder = Recorder(SystemClock())
    own = NodeTraffic(recorder, SystemClock())
    first.provide(traffic_of_cluster=ClusterTraffic("n0", own, mac_of("x"), dict))
    line = await further.dial()
    await line.call("HELLO", "3", "AUTH", "admin", doubles.SECRET)
    line.send("R.TAP MS 300", "PING")
    await eventually(lambda: recorder.taps.open)
    for _ in range(2000):
        recorder.note("app", "Q.PUT", b"mails", "10.0.0.1", 100, 20, "", 0.001)
        if not len(recorder.taps.open[1].lines) % 500:
            await asyncio.sleep(0)
    pushed = 0
    while isinstance(found := await line.reply(), list):
        assert found[0] == b"tap"
        assert msgspec.json.decode(found[1])["name"] == "mails"
        pushed += 1
    assert (found[b"matched"], found[b"shown"]) == (2000, pushed)
    assert pushed + found[b"dropped"] == 2000
    assert await line.reply() == b"PONG"
    assert await line.call("R.STATUS")
    line.send("R.TAP MS 60000")
    await eventually(lambda: recorder.taps.open)
    line.drop()
    await eventually(lambda: not recorder.taps.open)
