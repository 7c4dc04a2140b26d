"""What a door notes of the requests that it has answered."""

from __future__ import annotations

import asyncio

from support.doors.doubles import ADMIN, SECRET, Door
from support.doors.recording_traffic import RecordingTraffic

from tidewarden.server.answered_requests import UNKNOWN
from tidewarden.server.verbs.table import COMMANDS


def counted(door: Door, family: str) -> dict[str, float]:
    """How many requests of each verb a histogram has."""
    series = door.server.own_stats()["histograms"].get(family, {})
    return {
        labels.removeprefix("resp\t"): sum(n for le, n in found.items() if le != "sum")
        for labels, found in series.items()
    }


async def test_every_answer_is_noted_with_its_verb_its_subject_and_whether_it_failed() -> None:
    traffic = RecordingTraffic()
    async with Door(traffic=traffic) as door:
        line = await door.dial()
        requests = (
            "PING",
            "Q.PUT mail ab ID 1",
            "q.put news",
            "T.GET p/a",
            "NONSENSE x",
            "Q.STATS",
        )
        for request in requests:
            line.send(request)
            await line.line()
        assert traffic.told() == [
            ("PING", b"", ""),
            ("Q.PUT", b"mail", ""),
            ("Q.PUT", b"news", "BADARG"),
            ("T.GET", b"p/a", "NOAUTH"),
            (UNKNOWN, b"", "ERR"),
            ("Q.STATS", b"", ""),
        ]
        put = traffic.notes[1]
        assert (put.bytes_in, put.bytes_out) == (len("Q.PUTmailabID1"), len("$1\r\n1\r\n"))
        assert put.peer == "127.0.0.1"
        assert put.user is None
        assert 0 <= put.seconds < 30
        assert counted(door, "request_duration_seconds") == {
            "PING": 1,
            "Q.PUT": 2,
            "T.GET": 1,
            UNKNOWN: 1,
            "Q.STATS": 1,
        }


async def test_who_asked_is_noted_and_a_secret_is_not() -> None:
    traffic = RecordingTraffic()
    async with Door(users=(ADMIN,), traffic=traffic) as door:
        line = await door.dial()
        line.send("Q.PAUSE mail")
        assert (await line.line()).startswith(b"-NOAUTH")
        await line.call("AUTH", "admin", SECRET)
        await line.call("Q.PAUSE", "mail")
        assert [(one.user, one.verb, one.name) for one in traffic.notes] == [
            (None, "Q.PAUSE", b"mail"),
            ("admin", "AUTH", b""),
            ("admin", "Q.PAUSE", b"mail"),
        ]


async def test_what_waits_is_counted_among_the_waits() -> None:
    async with Door() as door:
        door.queues.hold = asyncio.Event()
        line = await door.dial()
        line.send("Q.TAKE WAIT 1000 FROM mail", "PING")
        while not door.queues.calls:
            await asyncio.sleep(0)
        assert counted(door, "request_wait_seconds") == {}
        door.queues.hold.set()
        while await line.line() != b"+PONG":
            pass
        assert counted(door, "request_wait_seconds") == {"Q.TAKE": 1}
        assert counted(door, "request_duration_seconds") == {"PING": 1}


async def test_a_transaction_is_noted_as_it_runs() -> None:
    traffic = RecordingTraffic()
    async with Door(traffic=traffic) as door:
        line = await door.dial()
        line.send("MULTI", "Q.PAUSE a", "ECHO b", "EXEC")
        while await line.line() != b"$1":
            pass
        assert await line.line() == b"b"
        assert [verb for verb, _, _ in traffic.told()] == ["MULTI", "EXEC", "Q.PAUSE", "ECHO"]


async def test_a_reply_that_is_not_sent_has_no_bytes() -> None:
    traffic = RecordingTraffic()
    async with Door(traffic=traffic) as door:
        line = await door.dial()
        line.send("CLIENT REPLY SKIP", "Q.PUT", "PING")
        assert await line.line() == b"+PONG"
        assert [(one.bytes_out, one.failed) for one in traffic.notes] == [
            (0, ""),
            (0, "BADARG"),
            (len("+PONG\r\n"), ""),
        ]


def test_where_each_verb_names_what_it_is_for() -> None:
    by_subject: dict[int, set[str]] = {0: set(), 1: set(), -1: set()}
    for command in COMMANDS.values():
        by_subject[command.subject].add(command.name)
    assert {"Q.TAKE", "T.MGET", "T.PROVIDER"} <= by_subject[-1]
    assert {"AUTH", "HELLO", "ECHO", "SESSION", "R.BACKUP", "T.EXPORT", "T.IMPORT"} <= by_subject[0]
    about_all = {
        "Q.LIST",
        "L.LIST",
        "S.LIST",
        "S.NEXT",
        "T.LIST",
        "T.STATS",
        "T.EXPORT",
        "T.IMPORT",
    }
    assert {
        name for name in by_subject[0] if name.startswith(("Q.", "T.", "L.", "S."))
    } == about_all
