"""Q.*: what reaches the queue, and what the caller reads."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from support.doors import doubles

from tidewarden.queue.reads.condition import Condition, condition_of
from tidewarden.queue.task import Changes, TaskSpec


async def ask(door: Any, *requests: str | tuple[str | bytes, ...]) -> list[Any]:
    """The parsed replies to ``requests``."""
    line = await door.dial()
    line.send(*requests, "QUIT")
    reader = hiredis.Reader()
    reader.feed(await line.rest())
    found = []
    while (reply := reader.gets()) is not False:
        found.append(reply)
    return found[:-1]


@pytest.mark.parametrize(
    ("request_", "call"),
    [
        ("Q.PUT mail x", ("put", "mail", TaskSpec(b"x"))),
        (
            (
                "q.put mail x id a delay 5 within 6 priority 7 lease 8 attempts 9 backoff 10"
                " ifexists REPLACE"
            ),
            ("put", "mail", TaskSpec(b"x", "a", 5, None, None, 6, 7, 8, 9, 10, "replace")),
        ),
        ("Q.PUT mail x WAIT 0", ("put", "mail", TaskSpec(b"x"))),
        ("Q.PUT mail x WAIT 5 ID a", ("put_waiting", "mail", TaskSpec(b"x", "a"), 5)),
        ("Q.PUT mail x TTL 5", ("put", "mail", TaskSpec(b"x", ttl_ms=5))),
        ("Q.PUT mail x lane tenant-7", ("put", "mail", TaskSpec(b"x", lane="tenant-7"))),
        ("Q.PUT mail x AT 5 DEADLINE 6", ("put", "mail", TaskSpec(b"x", at_ms=5, deadline_ms=6))),
        ("Q.TAKE FROM a b", ("take", ("a", "b"), 1, 0, 0, "")),
        ("Q.TAKE COUNT 3 LEASE 4 ID x FROM a", ("take", ("a",), 3, 0, 4, "x")),
        ("Q.TAKE FROM from", ("take", ("from",), 1, 0, 0, "")),
        ("Q.ACK mail a 5", ("ack", "mail", (("a", 5),))),
        ("Q.ACK mail a 5 RESULT fine", ("ack", "mail", (("a", 5),), b"fine")),
        ("Q.WAIT mail a 5", ("wait", "mail", "a", 5)),
        ("Q.RELEASE mail a 5 REASON why DELAY 6", ("release", "mail", "a", 5, 6, "why")),
        ("Q.FAIL mail a 5", ("fail", "mail", "a", 5, None, "")),
        ("Q.FAIL mail a 5 DELAY 0", ("fail", "mail", "a", 5, 0, "")),
        ("Q.BURY mail a 5 REASON why", ("bury", "mail", "a", 5, "why")),
        ("Q.TOUCH mail a 5 LEASE 6", ("touch", "mail", "a", 5, 6)),
        (
            "Q.KICK mail COUNT 5 REASON no",
            ("kick", "mail", ("count", 5), ("reason_prefix", "no")),
        ),
        (
            ("Q.KICK", "mail", "ALL", "REASONIS", ""),
            ("kick", "mail", ("reason", ""), ("count", 2**31)),
        ),
        ("Q.KICK mail ID a", ("kick", "mail", ("ids", ["a"]))),
        ("Q.KICK mail ID a PAYLOAD x", ("put_again", "mail", "a", b"x", 0)),
        (
            ("Q.KICK", "mail", "PAYLOAD", b"\xff", "BURIED", "5", "ID", "a"),
            ("put_again", "mail", "a", b"\xff", 5),
        ),
        (
            "Q.UPDATE mail a PAYLOAD y PRIORITY 3 LEASE 4",
            ("update", "mail", "a", Changes(b"y", priority=3, lease=4)),
        ),
        ("Q.DELETE mail a", ("delete", "mail", "a", 0, False)),
        ("Q.DELETE mail a FORCE", ("delete", "mail", "a", 0, True)),
        ("Q.DELETE mail a LEASE 5", ("delete", "mail", "a", 5, False)),
        ("Q.PEEK mail a", ("peek", "mail", "a")),
        ("Q.PEEK mail a maxstale 300", ("peek", "mail", "a", 300)),
        ("Q.PEEK mail STATE Ready COUNT 5 AFTER c", ("page", "mail", "ready", 5, "c")),
        ("Q.PEEK mail STATE Ready MAXSTALE 7", ("page", "mail", "ready", 100, "", 7)),
        (
            "Q.PEEK mail STATE buried MATCH *a* COUNT 5 AFTER c",
            ("find", "mail", "buried", Condition("*a*"), ("count", 5), ("after", "c")),
        ),
        (
            ("Q.PEEK", "mail", "STATE", "ready", "where", "$.a[0]=x", "match", "ä", "in", "ID"),
            ("find", "mail", "ready", condition_of("ä", "id", "$.a[0]=x")),
        ),
        ("Q.REASONS mail", ("reasons", "mail")),
        ("Q.REASONS mail MAXSTALE 7", ("reasons", "mail", 7)),
        ("Q.PAUSE mail", ("pause", "mail", None)),
        ("Q.PAUSE mail MS 5", ("pause", "mail", 5)),
        ("Q.RESUME mail", ("resume", "mail")),
        ("Q.CHECK mail", ("check", "mail", False)),
        ("Q.CHECK mail REPAIR", ("check", "mail", True)),
        ("Q.CHECK _tokens:p", ("check", "_tokens:p", False)),
        ("Q.PURGE mail", ("purge", "mail", "")),
        ("Q.PURGE mail STATE Buried", ("purge", "mail", "buried")),
        (
            "Q.PURGE mail STATE Buried REASONIS no",
            ("delete buried", "mail", ("reason", "no"), ("count", 2**31)),
        ),
        (
            "Q.PURGE mail COUNT 5 AGE 7 STATE Buried",
            ("delete buried", "mail", ("count", 5), ("age_ms", 7)),
        ),
        ("Q.RELEASEALL mail", ("release_all", "mail")),
        ("Q.RELEASEALL mail HOLDER n0.1", ("release_all", "mail", "n0.1")),
        ("Q.RELEASEALL mail session x", ("release_all", "mail", "x")),
        ("Q.LINK t q EXPIRE 5000", ("link", "t", "q", ("expire_ms", 5000))),
        (
            "Q.LINK t q capacity 9 expire 7",
            ("link", "t", "q", ("capacity", 9), ("expire_ms", 7)),
        ),
        ("Q.DROP mail", ("drop", "mail", False)),
        ("Q.DROP mail force", ("drop", "mail", True)),
        ("Q.DROPTOPIC events", ("drop_topic", "events")),
        ("Q.MOVE dead COUNT 5 TO mail", ("move", "dead", "mail", ("count", 5))),
        (
            "Q.CONFIG mail SET shards 4 order edf",
            ("configure", "mail", {"shards": "4", "order": "edf"}),
        ),
    ],
)
async def test_what_reaches_the_queue(request_: str, call: tuple[Any, ...]) -> None:
    async with doubles.Door() as door:
        await ask(door, request_)
        assert door.queues.calls == [call]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ("Q.PUT mail", "Q.PUT has 1 arguments here; its form is: Q.PUT queue payload [ID id]"),
        ("S.PUT s EVERY 500 mail x WAIT 5", "WAIT is not supported by this version"),
        ("Q.PUT mail x AT 5 DELAY 6", "DELAY excludes AT"),
        ("Q.PUT mail x DELAY -5", "DELAY must be an integer of 0 or more: found '-5'"),
        ("Q.TAKE COUNT 1 mail", "Q.TAKE has no option 'mail'"),
        ("Q.TAKE COUNT 1 FROM", "Q.TAKE needs the name of a queue after FROM"),
        ("Q.ACK mail a 5 b", "an id and a lease for each task"),
        ("Q.ACK mail a x", "A lease must be an integer"),
        ("Q.ACK mail a 5 b 6 RESULT ok", "Q.ACK takes a RESULT with one task only"),
        ("Q.WAIT mail a soon", "The time to wait must be an integer"),
        ("Q.KICK mail REASON x", "Q.KICK needs COUNT n, ALL or ID id"),
        (
            "Q.KICK mail COUNT 1 ID a",
            "Q.KICK takes ID id, which names the task, with no other option",
        ),
        ("Q.KICK mail COUNT 1 ALL", "ALL excludes COUNT"),
        ("Q.KICK mail COUNT 1 PAYLOAD x", "Q.KICK takes PAYLOAD and BURIED with ID id"),
        ("Q.KICK mail ALL REASON a REASONIS b", "REASONIS excludes REASON"),
        ("Q.PURGE mail REASON x", "Q.PURGE takes COUNT, REASON, REASONIS and AGE with STATE"),
        ("Q.PEEK mail STATE ready IN id", "Q.PEEK takes IN with MATCH glob"),
        (
            "Q.PEEK mail STATE ready MATCH a IN lane",
            "IN is 'lane'; allowed are payload, id, reason",
        ),
        ("Q.PEEK mail STATE ready WHERE a=1", "WHERE is 'a=1'; allowed is $, then .name"),
        ("Q.UPDATE mail a LEASE 5", "Q.UPDATE needs something to change"),
        ("Q.DELETE mail a LEASE 5 FORCE", "Q.DELETE"),
        ("Q.PEEK mail COUNT 5", "Q.PEEK needs an id, or STATE"),
        ("Q.CONFIG mail SHARDS 5", "SET and a value for each name"),
        ("Q.CONFIG mail SET shards 5 shards 6", "shards is given twice"),
        ("Q.LINK mail", "Q.LINK has 1 arguments here; its form is: Q.LINK topic queue [EXPIRE ms]"),
        ("Q.LIST QUEUES", "Q.LIST has no option 'QUEUES'. It knows TOPICS"),
        ("Q.DROP mail ALL", "Q.DROP has no option 'ALL'. It knows FORCE"),
        ("Q.STATS mail ALL", "Q.STATS has no option 'ALL'. It knows SHARDS"),
        ("Q.MOVE dead COUNT 5 COUNT 6", "COUNT is given beside its rival or twice"),
        (
            "Q.MOVE dead TO mail",
            "Q.MOVE has 3 arguments here; its form is: Q.MOVE queue {COUNT n | ALL} TO queue",
        ),
    ],
)
async def test_a_badarg_says_which_and_what_is_allowed(request_: str, said: str) -> None:
    async with doubles.Door() as door:
        (reply,) = await ask(door, request_)
        assert str(reply).startswith("BADARG ")
        assert said in str(reply)
        assert not door.queues.calls


@pytest.mark.parametrize(
    "request_",
    ["Q.PUT _x a", "Q.TAKE FROM a _x", "Q.ACK _x a 1", "Q.DELETE _x a FORCE", "Q.PEEK _x a", "Q.REASONS _x", "Q.STATS _x", "Q.CONFIG _x",
     "Q.PAUSE _x", "Q.KICK _x ID a", "Q.WAIT _x a 5",
     "Q.PURGE _x", "Q.RELEASEALL _x", "Q.HOLDERS _x", "Q.MOVE _x COUNT 1 TO a", "Q.MOVE a COUNT 1 TO _x",
     "Q.DROP _x", "Q.DROPTOPIC _x", "Q.LINK _x a", "Q.LINK a _x", "Q.UNLINK _x a"],
)  # fmt: skip
async def test_the_systems_queues_are_denied(request_: str) -> None:
    async with doubles.Door() as door:
        (reply,) = await ask(door, request_)
        assert str(reply).startswith("DENIED Queues whose names begin with _")
        assert not door.queues.calls


async def test_topics_filters_and_sizes() -> None:
    async with doubles.Door() as door:
        replies = await ask(
            door, "Q.LINK events mail", "q.unlink events mail", "Q.LIST TOPICS", "Q.STATS mail SHARDS",
            "Q.KICK dead ALL REASON http AGE 5000", "Q.KICK dead COUNT 2 AGE 1", "Q.MOVE dead ALL TO mail AGE 7 REASON x",
        )  # fmt: skip
        assert replies == [
            1, 0, [b"events", [b"audit", b"mail"]], [b"ready", 0, b"puts_total", 7, b"by_shard", [[b"shard", 0, b"total", 1]]],
            3, 3, 6,
        ]  # fmt: skip
        assert door.queues.calls == [
            ("link", "events", "mail"), ("unlink", "events", "mail"),
            ("kick", "dead", ("reason_prefix", "http"), ("age_ms", 5000), ("count", 2**31)),
            ("kick", "dead", ("count", 2), ("age_ms", 1)),
            ("move", "dead", "mail", ("age_ms", 7), ("reason_prefix", "x"), ("count", 2**31)),
        ]  # fmt: skip


async def test_names_and_ids_are_utf8() -> None:
    async with doubles.Door() as door:
        replies = await ask(
            door,
            ("Q.PUT", b"\xff", "x"),
            ("Q.PUT", "mail", "x", "ID", b"\xff"),
            ("Q.PUT", "mail", b"\xff"),
        )
        assert [str(reply)[:6] for reply in replies[:2]] == ["BADARG", "BADARG"]
        assert door.queues.calls == [("put", "mail", TaskSpec(b"\xff"))]


async def test_replies_of_the_others() -> None:
    async with doubles.Door() as door:
        replies = await ask(
            door, "Q.RELEASE mail a 1", "Q.RELEASE mail a 2", "Q.TOUCH mail a 2", "Q.KICK mail COUNT 5", "Q.DELETE mail a",
            "Q.PEEK mail a", "Q.PEEK mail STATE ready", "Q.STATS mail", "Q.STATS", "Q.LIST", "Q.CONFIG mail", "Q.CONFIG mail SET shards 2",
            "Q.WAIT mail a 0", "Q.PURGE mail", "Q.RELEASEALL mail", "Q.MOVE a COUNT 1 TO b",
            "Q.CHECK mail", "Q.CHECK", "Q.CHECK * REPAIR",
        )  # fmt: skip
        assert str(replies[0]) == "NOTHELD this lease has ended +OK"
        checked, system = (
            [b"queue", b"mail", b"problems", 0],
            [b"queue", b"_tokens:x", b"problems", 0],
        )
        assert replies[1:5] == [b"OK", 2**41, 3, 1]
        assert replies[5] == [
            b"id",
            b"a",
            b"state",
            b"ready",
            b"payload",
            b"\x00\xff",
            b"reason",
            None,
        ]
        assert replies[6] == [[[b"id", b"a"]], b"next"]
        assert replies[7] == [b"ready", 0, b"puts_total", 7]
        assert replies[8] == [b"mail", replies[7]]
        assert replies[9] == [b"mail"]
        assert replies[10:] == [
            [b"shards", 1, b"order", b"bands"],
            b"OK",
            [b"done", b"\xff"],
            4,
            5,
            6,
            checked,
            [checked, system],
            [checked, system],
        ]
