"""HELLO, AUTH, CLIENT and their like: what stock clients need to connect."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import hiredis
import pytest
from support.doors import doubles

Door = doubles.Door


async def parsed(line: Any) -> Any:
    reader = hiredis.Reader()
    while (reply := reader.gets()) is False:
        async with asyncio.timeout(20):
            reader.feed(await line.reader.read(1))
    return reply


async def test_hello_switches_maps() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(
            "HELLO",
            "HELLO 3 SETNAME worker-1",
            "CLIENT GETNAME",
            "HELLO 2",
            "HELLO 4",
            "HELLO 3 NOISE",
        )
        assert (await parsed(line))[:2] == [b"server", b"tidewarden"]
        found = await parsed(line)
        assert found[b"proto"] == 3
        assert found[b"id"] == 1
        assert await parsed(line) == b"worker-1"
        assert isinstance(await parsed(line), list)
        assert str(await parsed(line)).startswith("NOPROTO")
        assert str(await parsed(line)).startswith("BADARG HELLO takes")


async def test_nobody_gets_in_without_a_secret_where_there_are_users() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        for request in ("PING", "Q.PUT mail x", "T.STATS", "CLIENT LIST", "INFO", "HELLO 3"):
            assert (await line.ask(request)).startswith(b"-NOAUTH")
        assert (await line.ask("AUTH", "admin", "wrong")).startswith(b"-WRONGPASS")
        assert (await line.ask("PING")).startswith(b"-NOAUTH")
        assert await line.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        assert await line.ask("PING") == b"+PONG"
        assert await line.ask("RESET") == b"+RESET"
        assert (await line.ask("PING")).startswith(b"-NOAUTH")
        assert await line.ask("AUTH", doubles.SECRET) == b"+OK"
        assert await line.ask("Q.PUT mail x ID 1") == b"$1"


async def test_hello_with_auth() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        assert (await line.ask("HELLO", "3", "AUTH", "admin", "wrong")).startswith(b"-WRONGPASS")
        line.send(("HELLO", "3", "AUTH", "admin", doubles.SECRET, "SETNAME", "x"))
        assert (await parsed(line))[b"proto"] == 3
        assert await line.ask("T.REFRESH p/a") == b"+OK"


async def test_tokens_need_a_named_user_even_where_the_door_is_open() -> None:
    async with Door() as door:
        line = await door.dial()
        assert await line.ask("PING") == b"+PONG"
        for request in (
            "T.GET p/a",
            "T.PUT p/a {}",
            "T.LIST",
            "T.STATS",
            "T.DELETE p/a",
            "T.REFRESH p/a",
        ):
            assert (await line.ask(request)).startswith(b"-NOAUTH")
        assert not door.tokens.calls


async def test_a_wrong_secret_delays_nobody_else() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        well, guesser = await door.dial(), await door.dial()
        assert await well.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        guesser.send(*[("AUTH", "admin", f"guess{n}") for n in range(20)])
        started = time.monotonic()
        for _ in range(20):
            assert await well.ask("PING") == b"+PONG"
        assert not guesser.reader.at_eof()
        assert time.monotonic() - started < 5
        assert door.server.stats()["logins_refused_total"] <= 20


async def test_a_stranger_may_not_send_much() -> None:
    async with Door(users=(doubles.ADMIN,)) as door:
        line = await door.dial()
        line.send(("AUTH", "admin", b"x" * 20_000))
        assert (await line.rest()).startswith(b"-TOOBIG")
        known = await door.dial()
        assert await known.ask("AUTH", "admin", doubles.SECRET) == b"+OK"
        known.send(("ECHO", b"x" * 20_000))
        assert await known.line() == b"$20000"


async def test_client_subcommands() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(
            "CLIENT ID", "CLIENT GETNAME", "CLIENT SETNAME w", "CLIENT SETINFO LIB-NAME x", "CLIENT SETINFO LIB-OTHER x",
            "CLIENT NO-EVICT ON", "CLIENT NO-TOUCH maybe", "CLIENT TRACKING ON", "CLIENT KILL 1", "CLIENT SETNAME a b",
            ("CLIENT", "SETNAME", "a b"), ("CLIENT", "NON\r\nSENSE"), "CLIENT INFO",
        )  # fmt: skip
        found = [await parsed(line) for _ in range(13)]
        assert found[:4] == [1, None, b"OK", b"OK"]
        assert found[5] == b"OK"
        for position in (4, 6, 7, 8, 9, 10, 11):
            assert isinstance(found[position], hiredis.ReplyError)
        assert b"name=w" in found[12]
        assert b"lib-name=x" in found[12]
        assert found[12].count(b"\n") == 1
        assert b" tot-mem=0 " in found[12], "redis-py 5 cannot do without"


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        ("PING hello", b"hello"),
        ("ECHO hello", b"hello"),
        ("SELECT 0", b"OK"),
        ("COMMAND INFO ping nonsense", [[b"ping", -1, [], 0, 0, 0, [], [], [], []], None]),
        ("COMMAND DOCS ping", [b"ping", [b"summary", b"[message]", b"group", b"connection"]]),
    ],
)
async def test_small_talk(request_: str, reply: object) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(request_)
        assert await parsed(line) == reply


async def test_command_lists_and_counts_every_verb() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send(
            "COMMAND", "COMMAND COUNT", "COMMAND LIST", "COMMAND NONSENSE", "SELECT 1", "INFO"
        )
        rows, count, names, *wrong = [await parsed(line) for _ in range(5)]
        assert len(rows) == count == len(names)
        assert b"q.take" in names
        assert [type(reply) for reply in wrong] == [hiredis.ReplyError] * 2
        info = await parsed(line)
        assert b"connected_clients:1\r\n" in info
        assert b"True" not in info


async def test_info_has_the_sections_that_are_asked_for() -> None:
    """valkey-glide connects to what says ``role:master`` alone, and redis-py reads the last role."""
    async with Door() as door:
        line = await door.dial()
        line.send("INFO", "INFO REPLICATION", "INFO server clients", "INFO nothing", "INFO all")
        whole, replication, two, nothing, every = [await parsed(line) for _ in range(5)]
        assert replication == b"# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
        assert whole.count(b"role:") == 2
        assert b"\r\ncluster_role:" in whole
        assert [line for line in two.split(b"\r\n") if line[:1] == b"#"] == [
            b"# Server",
            b"# Clients",
        ]
        assert nothing == b""
        assert every.count(b"# ") == whole.count(b"# ") == 5


@pytest.mark.parametrize(
    ("word", "more"),
    [
        ("Q.PUTT", "; did you mean Q.PUT?"),
        ("q.ackk", "; did you mean Q.ACK?"),
        ("GET", ""),
        ("X.Y", ""),
    ],
)
async def test_a_misspelt_verb(word: str, more: str) -> None:
    async with Door() as door:
        line = await door.dial()
        line.send((word, "a"))
        assert str(await parsed(line)) == f"ERR unknown command '{word}'{more}"


async def test_quit() -> None:
    async with Door() as door:
        line = await door.dial()
        line.send("PING", "QUIT", "PING")
        assert await line.rest() == b"+PONG\r\n+OK\r\n"
