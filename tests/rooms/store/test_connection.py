"""The connection to the store: pipelined, reconnected, honest about what may have happened."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.inspect import backlog_of, transport_of

from tidewarden.clock import SystemClock
from tidewarden.cluster.replication.primary_finder import ReplicatedPrimary
from tidewarden.errors import BadArg, Error, Full, NotHeld, Stale, StoreDown
from tidewarden.store import StoreConnection
from tidewarden.store import connection as module
from tidewarden.store.reply_errors import (
    NoMajority,
    NotRun,
    ReadOnlyServer,
    StoreRefused,
    TooFewCopies,
    error_of,
    refused_for_now,
)

PING = b"*1\r\n$4\r\nPING\r\n"


MakeLink = Callable[..., StoreConnection]


@pytest.fixture
async def make() -> AsyncIterator[MakeLink]:
    """``make(url, …)`` makes a link that is stopped after the test."""
    links: list[StoreConnection] = []

    def made(url: object, **listeners: Any) -> StoreConnection:
        links.append(
            StoreConnection(
                str(url) if "://" in str(url) else f"unix://{url}",
                "test",
                SystemClock(),
                **listeners,
            )
        )
        return links[-1]

    yield made
    for link in links:
        await link.stop()


@pytest.fixture
async def link(valkey: Any, make: MakeLink) -> StoreConnection:
    link = make(valkey.url)
    await link.start()
    return link


def pong(data: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"+PONG\r\n" * data.count(PING))


class Double:
    """
    A server that answers redis-py's greeting, then with what ``answer`` says; each request is kept.
    """

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.answer: Callable[[bytes, asyncio.StreamWriter], None] = pong

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while data := await reader.read(65536):
            for _ in range(data.count(b"CLIENT\r\n")):  # SETNAME and SETINFO
                writer.write(b"+OK\r\n")
            if b"CLIENT\r\n" not in data:
                self.requests.append(data)
                self.answer(data, writer)
        writer.close()


@pytest.fixture
async def double(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[Double]]]:
    """``await double()`` starts a server double on ``tmp_path/d``."""
    servers: list[asyncio.AbstractServer] = []
    doubles: list[Double] = []

    async def make() -> Double:
        made = Double()
        doubles.append(made)
        servers.append(await asyncio.start_unix_server(made.serve, str(tmp_path / "d")))
        return made

    yield make
    for server, made in zip(servers, doubles, strict=True):
        server.close()
        for writer in made.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def quick(monkeypatch: pytest.MonkeyPatch, **constants: float) -> None:
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value)


async def is_refused_within(link: StoreConnection, limit_s: float) -> None:
    """A call is told soon that no primary is reached, and why."""
    patience = asyncio.ensure_future(asyncio.sleep(limit_s))
    with pytest.raises(
        StoreDown, match="no primary of cluster c is reached: 1 of 3 nodes is heard"
    ):
        await link.call("PING")
    assert not patience.done()
    await patience


async def test_replies_come_in_the_order_of_the_calls(link: StoreConnection) -> None:
    calls = [link.call("INCR", "n") for _ in range(500)]
    assert await asyncio.gather(*calls) == list(range(1, 501))
    assert await link.call("ECHO", b"\x00\xff\r\n") == b"\x00\xff\r\n"
    assert await link.call("GET", "none") is None
    assert await link.call("MGET", "n", "none") == [b"500", None]


async def test_calls_of_one_turn_go_out_together(
    double: Any, tmp_path: Path, make: MakeLink
) -> None:
    server = await double()
    link = make(tmp_path / "d")
    await link.start()
    await asyncio.gather(*(link.call("PING") for _ in range(10)))
    assert server.requests == [PING, PING * 10]


async def test_an_error_reply_is_raised_by_its_word_and_the_others_go_on(
    link: StoreConnection,
) -> None:
    await link.call("SET", "text", "x")
    good, bad, good_too = link.call("INCR", "a"), link.call("INCR", "text"), link.call("INCR", "a")
    assert await good == 1
    with pytest.raises(Error, match="not an integer"):
        await bad
    assert await good_too == 2


@pytest.mark.parametrize(
    ("line", "cls"),
    [
        ("NOTHELD the task", NotHeld), ("STALE fence", Stale), ("OOM command not allowed", Full), ("LOADING x", NotRun),
        ("ERR Error running script (call to f_1): @user_script:1: -LOADING x", StoreRefused), ("MOVED 3 h:1", NotRun),
        ("BUSY running a script", StoreRefused), ("READONLY replica", ReadOnlyServer), ("NOAUTH", StoreRefused), ("WRONGTYPE x", Error),
        ("MISCONF Redis is configured", StoreRefused), ("ERR unknown", Error), ("NOPERM no permissions", StoreRefused),
        ("ERR Error running script (call to f_1): @user_script:1: -MISCONF Redis is configured", StoreRefused),
        ("ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed", Full),
        ("NOREPLICAS Not enough good replicas to write.", TooFewCopies),
        ("NOREPLICAS Not enough good replicas. script: 0a, on @user_script:3.", TooFewCopies),
        ("ERR ACL failure in script: User x", StoreRefused), ("TRYAGAIN in its midst. script: 0a, on @user_script:17.", StoreRefused),
    ],
)  # fmt: skip
def test_what_error_replies_mean(line: str, cls: type[Error]) -> None:
    assert (type(error_of(line)), "user_script" in str(error_of(line))) == (cls, False)


@pytest.mark.parametrize(
    ("line", "now"),
    [
        ("READONLY replica", True), ("READONLY replica. script: 0a, on @user_script:3.", True),
        ("NOREPLICAS Not enough good replicas to write.", True), ("LOADING x", True), ("MASTERDOWN x", True),
        ("MOVED 3 h:1", False), ("TRYAGAIN x", False), ("BUSY running a script", False), ("OOM command not allowed", False),
        ("STALE fence", False), ("ERR Error running script (call to f_1): @user_script:1: -LOADING x", False),
    ],
)  # fmt: skip
def test_a_server_that_did_nothing_may_do_it_in_a_moment(line: str, now: bool) -> None:
    assert refused_for_now(error_of(line)) is now


def test_a_store_without_enough_copies_is_no_quorum_to_callers_and_a_refusal_inside() -> None:
    error = error_of("NOREPLICAS Not enough good replicas to write.")
    assert isinstance(error, StoreRefused)
    assert (error.code, "nothing was done" in str(error)) == ("NOQUORUM", True)


async def test_a_caller_that_has_gone_does_not_disturb_the_order(link: StoreConnection) -> None:
    first, second, third = (link.call("ECHO", word) for word in "abc")
    second.cancel()
    assert (await first, await third) == (b"a", b"c")


async def test_what_is_on_the_way_fails_when_the_connection_is_cut(
    double: Any, tmp_path: Path, make: MakeLink
) -> None:
    server = await double()
    link = make(tmp_path / "d")
    await link.start()
    server.answer = lambda data, writer: None
    calls = [link.call("INCR", "n") for _ in range(3)]
    gone = link.call("INCR", "n")
    gone.cancel()
    await asyncio.sleep(0)
    while len(server.requests) < 2:
        await asyncio.sleep(0.001)
    server.answer = pong
    server.writers[0].close()
    for call in calls:
        with pytest.raises(StoreDown, match="may or may not have happened"):
            await call
    assert await link.call("PING") == b"PONG"
    assert (link.reconnects, server.requests[2:]) == (2, [PING]), "nothing is repeated"


async def test_a_call_made_while_it_is_away_waits_for_it(
    double: Any, tmp_path: Path, make: MakeLink
) -> None:
    link = make(tmp_path / "d")
    starting = asyncio.create_task(link.start(wait_s=20))
    early = link.call("PING")
    await asyncio.sleep(0)
    assert not link.up
    await double()
    assert await early == b"PONG"
    await starting
    assert link.up


async def test_it_waits_for_so_long_and_nothing_was_sent(
    double: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, PATIENCE_S=0.05, RETRY_LAST_S=0.05)
    link = make(tmp_path / "d")
    with pytest.raises(
        StoreDown, match=r"no connection within 0.2 s: the store at .* does not answer"
    ):
        await link.start(wait_s=0.2)
    with pytest.raises(StoreDown, match="nothing was sent"):
        await link.call("INCR", "n")
    assert not backlog_of(link), "what nobody waits for is not kept"
    quick(monkeypatch, PATIENCE_S=20.0)
    server = await double()
    assert await link.call("PING") == b"PONG"
    assert server.requests == [PING]


async def test_calls_wait_less_once_no_server_can_take_writes_before_somebody_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, PATIENCE_S=0.3, HOPELESS_S=0.1)
    finder = ReplicatedPrimary("cluster c")
    finder.tell(f"unix://{tmp_path}/none", "")
    link = make("redis+replicated://h", finder=finder)
    link.launch()
    for fault in ("", "1 of 3 nodes is heard"):
        finder.fault = fault
        with pytest.raises(StoreDown, match="cluster c"):
            await link.call("PING")
    await is_refused_within(link, 0.3)


async def test_what_a_link_was_down_for_counts_as_waited_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, PATIENCE_S=0.6, HOPELESS_S=0.1)
    finder = ReplicatedPrimary("cluster c")
    link = make("redis+replicated://h", finder=finder)
    link.launch()
    await asyncio.sleep(0.2)
    finder.note_fault("1 of 3 nodes is heard", alone=False)
    await is_refused_within(link, 0.6)


async def test_calls_that_wait_are_no_quorum_once_no_majority_is_in_reach(
    monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    """Those that were asked for before that was known, too; they have waited for long enough."""
    quick(monkeypatch, HOPELESS_S=0.05, LOOK_S=0.01)
    finder = ReplicatedPrimary("cluster c")
    link = make("redis+replicated://h", finder=finder, limit_s=0.1)
    link.launch()
    waiting = [link.call("PING") for _ in range(3)]
    await asyncio.sleep(0.2)
    assert not any(call.done() for call in waiting), "another primary may be there at any time"
    finder.note_fault("1 of 3 nodes is heard", alone=True)
    async with asyncio.timeout(module.PATIENCE_S / 2):
        for call in (*waiting, link.call("PING")):
            with pytest.raises(
                NoMajority, match=r"nothing was sent.*1 of 3 nodes is heard"
            ) as told:
                await call
            assert (told.value.code, told.value.http_status) == ("NOQUORUM", 503)
    assert not backlog_of(link)


async def test_a_majority_that_is_back_in_time_is_none_the_wiser(
    valkey: Any, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, HOPELESS_S=0.05, LOOK_S=0.01)
    finder = ReplicatedPrimary("cluster c")
    finder.note_fault("1 of 3 nodes is heard", alone=True)
    link = make("redis+replicated://h", finder=finder, limit_s=20.0)
    link.launch()
    waiting = link.call("PING")
    await asyncio.sleep(0.1)
    finder.note_fault("", alone=False)
    finder.tell(valkey.url, "")
    assert await waiting == b"PONG"


async def test_so_many_calls_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, BACKLOG_MAX=3)
    link = make(tmp_path / "none")
    waiting = [link.call("PING") for _ in range(3)]
    with pytest.raises(StoreDown, match="3 calls wait"):
        await link.call("PING")
    await link.stop()
    for call in waiting:
        with pytest.raises(StoreDown, match="nothing was sent: the link was closed"):
            await call


async def test_who_waits_for_an_answer_is_told_who_closed_the_link(link: StoreConnection) -> None:
    waiting = link.call("BLPOP", "nothing", 0)
    await link.stop()
    with pytest.raises(StoreDown, match=r"\(the link was closed\); what was sent may or may not"):
        await waiting


async def test_a_start_waits_longer_than_a_call_would(
    double: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, PATIENCE_S=0.02)
    link = make(tmp_path / "d")
    starting = asyncio.create_task(link.start(wait_s=20))
    await asyncio.sleep(0.1)
    assert not starting.done()
    await double()
    await starting


async def test_a_start_waits_while_the_store_loads(
    double: Any, tmp_path: Path, make: MakeLink
) -> None:
    server = await double()
    replies = [b"-LOADING Valkey is loading\r\n", b"-LOADING Valkey is loading\r\n"]
    server.answer = lambda data, writer: writer.write(replies.pop() if replies else b"+PONG\r\n")
    link = make(tmp_path / "d")
    await link.start(wait_s=20)
    assert len(server.requests) == 3


async def test_an_address_that_is_none_is_refused_at_once(make: MakeLink) -> None:
    with pytest.raises(BadArg, match="begins with none of"):
        await make("http://h").start()


async def test_every_connection_begins_with_the_same(
    double: Any, tmp_path: Path, make: MakeLink, eventually: Any
) -> None:
    server = await double()
    ready: list[int] = []
    server.answer = lambda data, writer: writer.write(b"+OK\r\n" * data.count(b"*"))
    link = make(
        tmp_path / "d",
        on_up=lambda _: [("FIRST",), ("SECOND", 2)],
        on_ready=lambda: ready.append(len(server.requests)),
    )
    await link.start()
    begin = b"*1\r\n$5\r\nFIRST\r\n*2\r\n$6\r\nSECOND\r\n$1\r\n2\r\n"
    assert server.requests == [begin + PING]
    server.writers[0].close()
    await eventually(lambda: len(ready) == 2)
    assert server.requests[1].startswith(begin)
    assert ready == [1, 2], "called when the beginning was answered"


async def test_a_refused_beginning_is_reported(
    double: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: MakeLink
) -> None:
    server = await double()
    server.answer = lambda data, writer: writer.write(
        b"-NOPERM this user has no permissions\r\n+PONG\r\n"
    )
    link = make(tmp_path / "d", on_up=lambda _: [("SUBSCRIBE", "c")])
    with caplog.at_level(logging.WARNING):
        await link.start()
    assert "NOPERM" in caplog.text


async def test_messages_go_to_their_listener(
    valkey: Any, link: StoreConnection, eventually: Any, make: MakeLink
) -> None:
    heard: list[Any] = []
    ears = make(valkey.url, on_up=lambda _: [("SUBSCRIBE", "a", "b")], on_message=heard.append)
    await ears.start()
    assert await link.call("PUBLISH", "a", "1") == 1
    await link.call("PUBLISH", "b", b"\xff")
    messages = await eventually(
        lambda: len(found := [m for m in heard if m[0] == b"message"]) == 2 and found
    )
    assert messages == [[b"message", b"a", b"1"], [b"message", b"b", b"\xff"]]
    assert (await ears.call("PING"))[0] in (b"pong", b"subscribe")
    await ears.call("SUBSCRIBE", "c")
    await link.call("PUBLISH", "c", "3")
    await eventually(lambda: [b"message", b"c", b"3"] in heard)


async def test_one_that_only_listens_notices_a_dead_peer(
    double: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any, make: MakeLink
) -> None:
    quick(monkeypatch, STALL_S=0.08)
    server = await double()
    link = make(tmp_path / "d", on_message=lambda message: None)
    await link.start()
    calls = link.calls
    await eventually(lambda: len(server.requests) >= 3)  # asked now and then, as long as it answers
    assert link.reconnects == 1
    server.answer = lambda data, writer: None  # silence
    await eventually(lambda: link.reconnects >= 2)
    assert link.calls == calls


async def test_a_link_that_owes_an_answer_for_too_long_is_cut(
    double: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    quick(monkeypatch, STALL_S=0.08)
    server = await double()
    link = make(tmp_path / "d")
    await link.start()
    server.answer = lambda data, writer: None
    with pytest.raises(StoreDown, match="may or may not have happened"):
        await link.call("INCR", "n")


async def test_where_no_majority_is_in_reach_it_may_owe_an_answer_for_less_long(
    valkey: Any, monkeypatch: pytest.MonkeyPatch, make: MakeLink
) -> None:
    """No packet comes back from a host that is off, so nobody says that its store is gone."""
    quick(monkeypatch, STALL_S=4.0)
    finder = ReplicatedPrimary("cluster c")
    finder.tell(valkey.url, "")
    link = make("redis+replicated://h", finder=finder, limit_s=0.1)
    await link.start()
    finder.note_fault("1 of 3 nodes is heard", alone=True)
    async with asyncio.timeout(3.0):
        with pytest.raises(StoreDown, match=r"owed an answer for 0\.1 s.*may or may not"):
            await link.call("BLPOP", "nothing", 0)


async def test_rubbish_from_the_store_cuts_the_connection(
    double: Any, tmp_path: Path, make: MakeLink
) -> None:
    server = await double()
    link = make(tmp_path / "d")
    await link.start()
    server.answer = lambda data, writer: writer.write(b"!rubbish\r\n")
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with pytest.raises(StoreDown, match="may or may not have happened"):
        await link.call("INCR", "n")
    server.answer = pong
    assert await link.call("PING") == b"PONG"


async def test_stopped_in_whatever_state(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: MakeLink
) -> None:
    never = make(valkey.url)
    await never.stop()
    connecting = make(valkey.url)
    starting = asyncio.create_task(connecting.start())
    await asyncio.sleep(0)
    await connecting.stop()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    busy = make(valkey.url)
    await busy.start()
    call = busy.call("BLPOP", "none", 0)
    await busy.stop()
    with pytest.raises(StoreDown):
        await call
    await busy.stop()
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("turns", range(12))
async def test_stopped_while_it_connects_again(
    double: Any, tmp_path: Path, make: MakeLink, turns: int
) -> None:
    """redis-py may swallow a cancellation that comes while it connects."""
    await double()
    link = make(tmp_path / "d")
    await link.start()
    transport_of(link).abort()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await link.stop()
