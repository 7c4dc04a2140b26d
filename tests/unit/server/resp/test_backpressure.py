"""What a peer that sends too much, or does not read, may use up."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sys
from typing import Any

import pytest
from support.doors import doubles
from support.inspect import (
    PUMP,
    ahead_of,
    begun_count_of,
    chunks_of,
    is_reading,
    reader_of,
    requests_of,
    step_silently,
)
from support.manual_clock import ManualClock
from support.waiting import eventually

from tidewarden.server.access import users
from tidewarden.server.resp import backpressure as module
from tidewarden.server.resp import connection as connection_module
from tidewarden.server.resp import parser
from tidewarden.server.verbs.command import TOGETHER_LONG_MAX
from tidewarden.server.verbs.table import COMMANDS

Door = doubles.Door


async def test_a_crowd_behind_a_waiting_take_is_cut() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("Q.TAKE WAIT 20000 FROM a", *["PING"] * 1500)
        assert (await line.rest()).startswith(b"-TOOBIG")
        assert door.queues.closed


async def test_so_is_a_load_behind_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 100_000)
    async with Door() as door:
        line = await door.dial()
        line.send("Q.TAKE WAIT 20000 FROM a")
        await eventually(lambda: door.server.context.waiting == 1)
        line.send(("ECHO", b"x" * 60_000), ("ECHO", b"x" * 60_000))
        assert (await line.rest()).startswith(b"-TOOBIG")


async def test_large_requests_in_a_pipeline_wait_in_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 100_000)
    async with Door() as door:
        line = await door.dial()
        answers = asyncio.ensure_future(
            line.reader.readexactly((len(b"+OK\r\n") + 60_000 + len(b"$60000\r\n\r\n")) * 30)
        )
        line.send(*["Q.RESUME mail", ("ECHO", b"x" * 60_000)] * 30)
        assert (await asyncio.wait_for(answers, 60)).count(b"+OK\r\n$60000") == 30


@pytest.mark.thorough
async def test_a_long_pipeline_is_answered_whole() -> None:
    async with Door() as door:
        line = await door.dial()
        answers = asyncio.ensure_future(line.reader.readexactly(len(b"+OK\r\n+PONG\r\n") * 20_000))
        for _ in range(20):
            line.send(*["Q.RESUME mail", "PING"] * 1000)
            await line.writer.drain()
        assert await asyncio.wait_for(answers, 60) == b"+OK\r\n+PONG\r\n" * 20_000
        await line.close()


async def test_a_peer_that_does_not_read_is_cut_and_nobody_else_suffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OUTPUT_BYTES", 10_000)
    monkeypatch.setattr(module, "STALL_S", 0.2)
    async with Door() as door:
        deaf = socket.create_connection(("127.0.0.1", door.port))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        blob = doubles.framed(("ECHO", b"x" * 500_000))
        loop = asyncio.get_running_loop()

        async def flood() -> None:
            while True:
                await loop.sock_sendall(deaf, blob)

        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await asyncio.wait_for(flood(), 30)
        deaf.close()
        well = await door.dial()
        assert await well.ask("PING") == b"+PONG"
        await well.close()


async def test_replies_that_may_be_long_are_asked_for_by_and_by() -> None:
    """Each that is under way is read from the store, whether its peer reads it or not."""
    async with Door() as door:
        queues = door.queues
        line = await door.dial()

        async def under_way(count: int) -> int:
            """How many of a hundred takes begin at once."""
            queues.hold = asyncio.Event()
            before = len(queues.calls)
            line.send(*["Q.TAKE FROM mail"] * 100)
            await eventually(lambda: len(queues.calls) >= before + count)
            await asyncio.sleep(0.05)
            begun = len(queues.calls) - before
            queues.hold.set()
            for _ in range(100):
                await line.reply()
            return begun

        assert await under_way(TOGETHER_LONG_MAX) == TOGETHER_LONG_MAX, (
            "nothing is known of its replies"
        )
        assert await under_way(100) == 100, "they were short"
        line.send(("ECHO", b"x" * 100_000))
        await line.reply()
        assert await under_way(TOGETHER_LONG_MAX) == TOGETHER_LONG_MAX, "they were long"
        await line.close()


async def held_back(door: Any, sent: bytes) -> Any:
    """
    A stranger whose wrong secret is not answered yet, and who sends on and on; the door's end of
    it.
    """
    line = await door.dial()
    line.send(("AUTH", "admin", "guess"))
    await eventually(
        lambda: any(
            begun_count_of(connection) for connection in door.server.context.peers.connections
        )
    )
    line.writer.write(sent)
    (connection,) = door.server.context.peers.connections
    await eventually(lambda: not is_reading(connection))
    await asyncio.sleep(0.05)
    return connection


@pytest.mark.parametrize(
    "sent", [("AUTH", "admin", "guess"), ("PING",), ("ECHO", "x" * 10_000), ("Q.PIT",)]
)
async def test_little_is_kept_of_what_a_stranger_sends(
    sent: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "FAILURE_DELAY_S", 5.0)
    async with Door(users=(doubles.ADMIN,)) as door:
        piece = doubles.framed(sent)
        connection = await held_back(door, piece * (2_000_000 // len(piece)))
        assert begun_count_of(connection) == 1
        kept = [*requests_of(connection), chunks_of(reader_of(connection))]
        assert sum(sys.getsizeof(word) for words in kept for word in words) < 48 * 1024
        assert ahead_of(connection) < 64 * 1024


async def test_a_stranger_asks_in_vain_and_nobody_looks_for_what_it_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        connection_module,
        "meant",
        lambda *_: pytest.fail("a quarter of a millisecond for a stranger"),
    )
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        for verb in ("Q.PIT", "NONSENSE", "Q.PUT"):
            assert (await line.ask(verb)).startswith(b"-NOAUTH")
        line.writer.write(b"Q.PIT\r\n")
        assert (await line.line()).startswith(b"-NOAUTH")
        assert await line.rest() == b"", "an inline command: no RESP peer at all"


async def test_a_pipeline_that_begins_with_a_login_is_answered_whole() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        for count in (5, 500, 20_000):
            line = await door.dial()
            line.send(("AUTH", "admin", doubles.SECRET), *["PING"] * count)
            async with asyncio.timeout(60):
                answers = await line.reader.readexactly(5 + 7 * count)
            assert answers == b"+OK\r\n" + b"+PONG\r\n" * count
            await line.close()


async def test_a_stranger_that_goes_on_and_on_is_read_as_its_budget_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read of it is paid for, whatever it was; who is let in is not held back."""
    async with Door(users=(doubles.ADMIN,)) as door:
        admission = door.server.admission
        ticks = iter(range(1 << 30))
        # each read costs half a millisecond
        monkeypatch.setattr(admission, "meter", lambda: next(ticks) * 0.000_5)
        unauthenticated, known = await door.dial(), await door.dial()
        for _ in range(100):
            unauthenticated.writer.write(b"\n" * 100_000)
        await eventually(lambda: admission.held_total)
        assert await known.call("AUTH", "admin", doubles.SECRET) == b"OK"
        reads = next(ticks)
        known.send(*["PING"] * 10_000)
        async with asyncio.timeout(60):
            await known.reader.readexactly(7 * 10_000)
        assert next(ticks) - reads < 1000, "its reads are not measured any more"
        assert len(admission) == 1
        unauthenticated.drop()
        door.lines.remove(unauthenticated)


@pytest.mark.parametrize("ending", [b"", b"*1\r\n$-1\r\n"])
async def test_a_flood_of_one_peer_takes_many_turns_and_is_answered_whole(
    ending: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser, "STEPS_MAX", 50)
    monkeypatch.setattr(parser, "LINES_MAX", 100)
    monkeypatch.setattr(parser, "LONG_BYTES", 1000)
    async with Door() as door:
        line = await door.dial()
        line.writer.write((b"PING\r\n" + doubles.framed("PING") * 20) * 500 + ending)
        line.writer.write_eof()
        answer = await line.rest()
        assert answer.startswith(b"+PONG\r\n" * 10_500)
        assert answer.count(b"-BADARG") == bool(ending)


async def test_requests_that_take_long_have_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted is how many are begun before others have their turn."""
    async with Door() as door:
        clock = ManualClock()
        monkeypatch.setattr(door.server.context, "clock", clock)
        begun = 0
        handler = COMMANDS[b"ECHO"].handler

        def slowly(connection: Any, request: Any) -> Any:
            nonlocal begun
            begun += 1
            step_silently(clock, 0.000_5)
            return handler(connection, request)

        slow = dataclasses.replace(COMMANDS[b"ECHO"], handler=slowly)
        monkeypatch.setattr(door.server.context, "commands", {**COMMANDS, b"ECHO": slow})
        turns: list[int] = []
        pump = getattr(connection_module.Connection, PUMP)

        def counted(subject: Any) -> None:
            before = begun
            pump(subject)
            turns.append(begun - before)

        monkeypatch.setattr(connection_module.Connection, PUMP, counted)
        line = await door.dial()
        line.send(*["ECHO x"] * 1000)
        async with asyncio.timeout(30):
            await line.reader.readexactly(1000 * len(b"$1\r\nx\r\n"))
        assert begun == 1000
        assert max(turns) <= 2 * connection_module.LOOK_EVERY, (
            "and five hundred where they take no time"
        )
