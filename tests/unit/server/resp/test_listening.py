"""A door's sockets: who is taken in, when nobody is, and how a stranger's bytes are read."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from support.inspect import ACCEPT, is_accepting, pause_listener, resume_listener, sockets_of
from support.waiting import eventually

from tidewarden.clock import SystemClock
from tidewarden.server.access import admission, listening
from tidewarden.server.access.admission import CHUNK_BYTES, AdmissionControl, UnauthenticatedPeer
from tidewarden.server.access.listening import Listener


class Recorder(asyncio.Protocol):
    """Keeps what it is given; lets its peer in at ``!``."""

    def __init__(self, unauthenticated: UnauthenticatedPeer | None) -> None:
        self.unauthenticated = unauthenticated
        self.pieces: list[bytes] = []
        self.ended = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        if data.endswith(b"!") and self.unauthenticated is not None:
            self.unauthenticated.authenticated()
        self.transport.write(b"%d " % len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


class Door:
    def __init__(self, places: int, everybody: bool) -> None:
        self.admission = AdmissionControl(SystemClock(), places=places)
        self.met: list[Recorder] = []
        self.listener = Listener(self.admission, self.meet, 100, lambda: everybody)

    def meet(self, unauthenticated: UnauthenticatedPeer | None) -> Recorder:
        self.met.append(Recorder(unauthenticated))
        return self.met[-1]

    async def dial(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        writer.write(sent)
        return reader, writer


@asynccontextmanager
async def door(places: int = 10, *, everybody: bool = False) -> AsyncIterator[Door]:
    made = Door(places, everybody)
    await made.listener.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        made.listener.close()
        for one in made.met:
            one.transport.abort()
        await eventually(lambda: all(one.ended for one in made.met))
        assert len(made.admission) == 0


Scene = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Scene:
    """In the loop of the tests, and in that of a node."""
    return request.param  # type: ignore[no-any-return]


def test_a_stranger_is_read_in_small_pieces_until_it_is_let_in(run: Scene) -> None:
    async def scene() -> None:
        async with door() as subject:
            _, writer = await subject.dial(b"x" * 10_000)
            await eventually(lambda: subject.met and sum(map(len, subject.met[0].pieces)) == 10_000)
            (peer,) = subject.met
            assert max(map(len, peer.pieces)) == CHUNK_BYTES
            assert len(subject.admission) == 1
            writer.write(b"!")
            await eventually(lambda: len(subject.admission) == 0)
            peer.pieces.clear()
            writer.write(b"y" * 1_000_000)
            await eventually(lambda: sum(map(len, peer.pieces)) == 1_000_000)
            assert max(map(len, peer.pieces)) > CHUNK_BYTES
            assert set(b"".join(peer.pieces)) == {ord("y")}
            writer.close()

    run(scene())


def test_where_everybody_may_come_nobody_is_a_stranger(run: Scene) -> None:
    async def scene() -> None:
        async with door(everybody=True) as subject:
            _, writer = await subject.dial(b"x" * 100_000)
            await eventually(
                lambda: subject.met and sum(map(len, subject.met[0].pieces)) == 100_000
            )
            assert subject.met[0].unauthenticated is None
            writer.close()

    run(scene())


def test_past_all_places_who_comes_waits_outside_and_is_lost_to_nobody(
    run: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It comes in as soon as another is let in, or has been a stranger for long enough to be sent
    away.
    """
    monkeypatch.setattr(admission, "GRACE_S", 1000.0)

    async def scene() -> None:
        async with door(places=3) as subject:
            lines = [await subject.dial() for _ in range(5)]
            await eventually(lambda: len(subject.met) == 3)
            await asyncio.sleep(0.05)
            assert len(subject.met) == 3
            lines[0][1].write(b"!")
            await eventually(lambda: len(subject.met) == 4)
            lines[1][1].close()
            await eventually(lambda: len(subject.met) == 5)
            lines.append(await subject.dial(b"!"))
            await asyncio.sleep(0.05)
            assert len(subject.met) == 5
            monkeypatch.setattr(admission, "GRACE_S", 0.0)
            lines[2][1].close()
            await eventually(lambda: len(subject.met) == 6 and subject.met[5].pieces == [b"!"])
            lines += [await subject.dial() for _ in range(10)]
            await eventually(lambda: len(subject.met) == 16)
            assert subject.admission.evicted_total >= 7
            for _, writer in lines:
                writer.close()

    run(scene())


def test_who_is_sent_away_for_another_is_told_so(run: Scene, monkeypatch: Any) -> None:
    monkeypatch.setattr(admission, "GRACE_S", 1000.0)

    async def scene() -> None:
        async with door(places=2) as subject:
            reader, writer = await subject.dial(b"x")
            await eventually(lambda: subject.met and subject.met[0].pieces)
            peer = subject.met[0].unauthenticated
            assert peer is not None
            peer.farewell = b"others came"
            monkeypatch.setattr(admission, "GRACE_S", 0.0)
            others = [(await subject.dial())[1] for _ in range(3)]
            async with asyncio.timeout(30):
                assert await reader.read() == b"1 others came"
            for one in (writer, *others):
                one.close()

    run(scene())


def test_one_that_is_gone_before_it_is_met(run: Scene) -> None:
    async def scene() -> None:
        async with door() as subject:
            for _ in range(20):
                sock = socket.create_connection(("127.0.0.1", subject.listener.port))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                sock.close()
            await eventually(lambda: len(subject.met) == 20 and len(subject.admission) == 0)

    run(scene())


async def test_out_of_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "AGAIN_S", 0.05)

    class Poor:
        """A socket whose host is out of files at first."""

        tries = 0

        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> tuple[socket.socket, Any]:
            Poor.tries += 1
            if Poor.tries <= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

    async with door() as subject:
        accept = getattr(subject.listener, ACCEPT)
        monkeypatch.setattr(subject.listener, ACCEPT, lambda one: accept(Poor(one)))
        pause_listener(subject.listener)
        resume_listener(subject.listener)
        _, writer = await subject.dial(b"!")
        await eventually(lambda: subject.met and subject.met[0].pieces)
        assert sum("no connection can be accepted" in text for text in caplog.messages) == 3
        writer.close()


async def test_a_port_that_is_taken_is_named() -> None:
    async with door() as subject:
        other = Listener(AdmissionControl(SystemClock()), subject.meet, 100, lambda: True)
        with pytest.raises(OSError, match=rf"cannot listen at .*{subject.listener.port}.*in use"):
            await other.start("127.0.0.1", subject.listener.port)


async def test_at_all_addresses_of_the_host() -> None:
    made = Door(10, everybody=False)
    await made.listener.start(["0.0.0.0", "::"], 0)
    assert {one.family for one in sockets_of(made.listener)} == {socket.AF_INET, socket.AF_INET6}
    made.listener.close()


def kept_at_most(listening_socket: socket.socket) -> int:
    """What its kernel keeps of those who come (``tcpi_sacked`` of a socket that listens)."""
    return int(
        struct.unpack_from(
            "I", listening_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28
        )[0]
    )


def test_while_nobody_is_taken_in_few_wait_outside(
    run: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be taken in after all who came before them, however many seconds later."""
    monkeypatch.setattr(listening, "BESIEGED_BACKLOG", 7)

    async def scene() -> None:
        async with door() as subject:
            (ours,) = sockets_of(subject.listener)
            assert kept_at_most(ours) == 100
            _, first = await subject.dial(b"x")
            await eventually(lambda: subject.met and subject.met[0].pieces)
            subject.admission.budget.spend(1000.0, subject.admission.clock.monotonic())
            _, second = await subject.dial(b"x")
            await eventually(lambda: kept_at_most(ours) == 7)
            assert len(subject.met) == 1
            subject.admission.budget.give_back(1000.0)
            first.close()  # which tells the door that there is room
            await eventually(lambda: kept_at_most(ours) == 100)
            await eventually(lambda: len(subject.met) == 2 and subject.met[1].pieces)
            second.close()

    run(scene())


def test_while_places_are_taken_as_many_wait_outside_as_ever(run: Scene) -> None:
    """
    A thousand users who come at once are let in in turn; a kernel's second try would take each a
    second.
    """

    async def scene() -> None:
        async with door(places=1) as subject:
            (ours,) = sockets_of(subject.listener)
            _, first = await subject.dial(b"x")
            await eventually(lambda: subject.met and subject.met[0].pieces)
            _, second = await subject.dial(b"x")
            await eventually(lambda: not is_accepting(subject.listener))
            assert (len(subject.met), kept_at_most(ours)) == (1, 100)
            first.write(b"!")
            await eventually(lambda: len(subject.met) == 2 and subject.met[1].pieces)
            first.close()
            second.close()

    run(scene())
