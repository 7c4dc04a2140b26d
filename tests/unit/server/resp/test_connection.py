"""Order, pipelining, limits and hanging up: one peer at a door with recording rooms behind."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from support.doors import doubles
from support.inspect import end_login
from support.waiting import eventually

from tidewarden.server.resp import connection as module

Door = doubles.Door


async def test_consecutive_requests_of_one_verb_run_together_and_others_wait() -> None:
    async with Door() as door:
        door.queues.hold = asyncio.Event()
        line = await door.dial()
        line.send("Q.PUT mail a ID 1", "Q.PUT mail b ID 2", "PING", "Q.PUT mail c ID 3")
        await eventually(lambda: len(door.queues.calls) == 2)
        await asyncio.sleep(0.02)
        assert [call[2].id for call in door.queues.calls] == ["1", "2"]
        door.queues.hold.set()
        assert [await line.line() for _ in range(7)] == [
            b"$1",
            b"1",
            b"$1",
            b"2",
            b"+PONG",
            b"$1",
            b"3",
        ]
        await line.close()


async def test_answers_keep_their_order_when_a_later_one_is_refused_first() -> None:
    async with Door() as door:
        door.queues.hold = asyncio.Event()
        line = await door.dial()
        line.send("Q.PUT mail a ID 1", "Q.PUT mail b DELAY x", "Q.PUT mail c ID 3")
        await eventually(lambda: len(door.queues.calls) == 2)
        door.queues.hold.set()
        assert [await line.line() for _ in range(2)] == [b"$1", b"1"]
        assert (await line.line()).startswith(b"-BADARG DELAY")
        assert [await line.line() for _ in range(2)] == [b"$1", b"3"]
        await line.close()


async def test_a_waiting_take_holds_up_what_follows() -> None:
    async with Door() as door:
        line, other = await door.dial(), await door.dial()
        line.send("Q.TAKE WAIT 20000 FROM mail", "Q.TAKE FROM mail", "PING")
        await eventually(lambda: door.server.context.waiting == 1)
        assert [call[0] for call in door.queues.calls] == ["take"]
        await other.ask("Q.PUT", "mail", "x", "ID", "1")
        assert await line.line() == b"*1"
        await eventually(
            lambda: len([call for call in door.queues.calls if call[0] == "take"]) == 2
        )
        assert door.server.context.waiting == 0
        await line.close()
        await other.close()


async def test_a_lost_connection_ends_its_take_and_its_session() -> None:
    async with Door() as door:
        line = await door.dial()
        await line.ask("Q.PUT mail x ID 1")
        line.send("Q.TAKE FROM mail", "Q.TAKE WAIT 20000 FROM other")
        await eventually(lambda: door.server.context.waiting == 1)
        line.writer.transport.abort()
        await eventually(lambda: door.queues.closed)
        await eventually(lambda: door.queues.cancelled == 1)
        assert door.queues.closed == door.queues.sessions
        assert door.server.context.waiting == 0
        assert not door.server.context.peers.connections


async def test_a_half_closed_peer_gets_its_answers_unless_it_holds_or_waits() -> None:
    async with Door() as door:
        door.queues.hold = asyncio.Event()
        line = await door.dial()
        line.send("Q.PUT mail x ID 1", "PING")
        await eventually(lambda: door.queues.calls)
        line.writer.write_eof()
        await asyncio.sleep(0.02)
        door.queues.hold.set()
        assert await line.rest() == b"$1\r\n1\r\n+PONG\r\n"
        waiter = await door.dial()
        waiter.send("Q.TAKE WAIT 20000 FROM other")
        await eventually(lambda: door.server.context.waiting == 1)
        waiter.writer.write_eof()
        assert await waiter.rest() == b""
        assert door.queues.cancelled == 1


async def test_multi_is_plain_order() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("MULTI", "PING", "Q.PUT mail a ID 1", "Q.BURY mail 1 x", "EXEC", "ECHO after")
        expected = [b"+OK", b"+QUEUED", b"+QUEUED", b"+QUEUED", b"*3", b"+PONG", b"$1", b"1"]
        assert [await line.line() for _ in range(8)] == expected
        assert (await line.line()).startswith(b"-BADARG A lease must be")
        assert [await line.line(), await line.line()] == [b"$5", b"after"]
        line.send(
            "MULTI", "NONSENSE", "EXEC", "EXEC", "MULTI", "MULTI", "PING", "DISCARD", "DISCARD"
        )
        said = [(await line.line()).split()[0] for _ in range(9)]
        assert said == [
            b"+OK",
            b"-ERR",
            b"-EXECABORT",
            b"-ERR",
            b"+OK",
            b"-ERR",
            b"+QUEUED",
            b"+OK",
            b"-ERR",
        ]
        await line.close()


async def test_client_reply_mutes() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(
            "CLIENT REPLY SKIP",
            "PING",
            "ECHO 1",
            "CLIENT REPLY OFF",
            "PING",
            "Q.PUT mail a",
            "CLIENT REPLY ON",
            "ECHO 2",
        )
        assert [await line.line() for _ in range(5)] == [b"$1", b"1", b"+OK", b"$1", b"2"]
        await line.close()


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        (b"*1\r\n:1\r\n", b"-BADARG"),
        (b"*99999\r\n", b"-TOOBIG"),
        (b"%1\r\n+a\r\n+b\r\n", b"-ERR"),
        (b"*2\r\n$4\r\nPING\r\n$99999999\r\n", b"-TOOBIG"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nQ.DELETE mail 1 FORCE\r\n", b"-ERR"),
    ],
)
async def test_what_is_not_the_protocol_is_answered_and_hung_up_on(
    sent: bytes, word: bytes
) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("PING")
        line.writer.write(sent)
        answer = await line.rest()
        assert answer.startswith(b"+PONG\r\n" + word)
        assert answer.count(b"\r\n") == 2
        assert not door.queues.calls
        well = await door.dial()
        assert await well.ask("PING") == b"+PONG"
        await well.close()


async def test_an_unknown_verb_names_itself_and_the_line_lives() -> None:
    async with Door() as door:
        line = await door.dial()
        assert await line.ask("NONSENSE x") == b"-ERR unknown command 'NONSENSE'"
        assert await line.ask("pInG") == b"+PONG"
        await line.close()


async def test_too_many_connections() -> None:
    async with Door(connections_max=1) as door:
        first = await door.dial()
        assert await first.ask("PING") == b"+PONG"
        second = await door.dial()
        assert (await second.rest()).startswith(b"-FULL This node has as many connections")
        await first.close()
        await eventually(lambda: not door.server.context.peers.connections)
        third = await door.dial()
        assert await third.ask("PING") == b"+PONG"
        await third.close()


async def test_who_does_not_say_who_it_is_may_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        named = await door.dial()
        assert await named.call("AUTH", "admin", doubles.SECRET) == b"OK"
        (connection,) = door.server.context.peers.connections
        end_login(connection)  # its time is over
        assert await named.ask("PING") == b"+PONG"
        monkeypatch.setattr(module, "LOGIN_S", 0.1)
        silent = await door.dial()
        assert (await silent.rest()).startswith(
            b"-NOAUTH You have not said who you are within 0.1 s."
        )
        assert await named.ask("PING") == b"+PONG"
        gone = await door.dial()
        await gone.close()
        # nobody again, and so for as long as anybody who comes
        assert await named.ask("RESET") == b"+RESET"
        assert (await named.rest()).startswith(b"-NOAUTH You have not said")
    async with Door() as door:
        guest = await door.dial()
        await asyncio.sleep(0.2)
        assert await guest.ask("PING") == b"+PONG", (
            "where everybody is let in, everybody may be silent"
        )
        await guest.close()


async def test_a_strangers_requests_keep_nobody_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGIN_S", 0.3)
    async with Door(users=(doubles.ADMIN,)) as door:
        unauthenticated = await door.dial()

        async def resets() -> None:
            while True:
                unauthenticated.send("RESET")
                await asyncio.sleep(0.05)

        asking = asyncio.create_task(resets())
        told = b""  # read piece by piece: what is sent to a closed port resets the connection
        while b"-NOAUTH You have not said who you are" not in told:
            told += (piece := await unauthenticated.reader.read(65_536))
            assert piece, told
        asking.cancel()


async def test_a_stranger_holds_no_more_than_a_short_line_here() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        unauthenticated, named = await door.dial(), await door.dial()
        unauthenticated.writer.write(b"x" * (module.UNAUTHENTICATED_BYTES + 1))
        assert (await unauthenticated.rest()).startswith(
            b"-TOOBIG An inline command may have 16384 bytes."
        )
        assert await named.call("AUTH", "admin", doubles.SECRET) == b"OK"
        named.writer.write(b"PING " + b"x" * 60_000 + b"\r\n")
        assert await named.line() == b"$60000"
        await named.close()


async def test_tls_where_there_is_none_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its first line might never end, so that the client would wait for as long as it can."""
    async with Door() as door:
        line = await door.dial()
        line.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert (await line.rest()).startswith(
            b"-BADARG This port speaks no TLS (node.tls_cert is not set)"
        )
        assert door.server.own_stats()["strangers_refused_total"] == 1
    assert (
        "sent away from the RESP door: it speaks TLS, which is not set up (node.tls_cert)"
        in caplog.messages
    )


async def test_too_many_waiting_takes() -> None:
    async with Door(waiting_max=1) as door:
        first, second = await door.dial(), await door.dial()
        first.send("Q.TAKE WAIT 20000 FROM a")
        await eventually(lambda: door.server.context.waiting == 1)
        assert (await second.ask("Q.TAKE WAIT 1 FROM a")).startswith(b"-FULL")
        assert await second.ask("Q.TAKE FROM a") == b"*0"
        await first.close()
        await second.close()


async def test_many_requests_and_the_end_at_once_are_answered() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(*["PING"] * 900)
        line.writer.write_eof()
        assert await line.rest() == b"+PONG\r\n" * 900


async def test_a_reset_while_answers_are_on_their_way() -> None:
    async with Door() as door:
        door.queues.hold = asyncio.Event()
        plain = socket.create_connection(("127.0.0.1", door.port))
        plain.sendall(doubles.framed("Q.PUT mail a ID 1") * 5)
        await eventually(lambda: len(door.queues.calls) == 5)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plain.close()
        await eventually(lambda: not door.server.context.peers.connections)
        door.queues.hold.set()
        await eventually(lambda: len(door.queues.ready.get("mail", ())) == 5)


async def test_a_defect_is_logged_and_answered_internal(caplog: pytest.LogCaptureFixture) -> None:
    async with Door() as door:
        door.queues.raises = RuntimeError("secret detail")
        line = await door.dial()
        answer = await line.ask("Q.PUT mail a")
        assert answer == b"-INTERNAL A defect of the server; its log has the trace."
        assert "secret detail" in caplog.text
        door.queues.raises = None
        assert await line.ask("PING") == b"+PONG"
        await line.close()
