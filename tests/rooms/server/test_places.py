"""
Replies keep their places also when what one connection asks makes another's requests, or its own,
be refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest
from support.doors import doubles
from support.doors.recording_rooms import RecordingQueues
from support.queues.desk import CLUSTER

from tidewarden.queue.shards.shard import ITEMS_MAX
from tidewarden.server.verbs.command import TOGETHER_MAX
from tidewarden.store import connection as link_module

MIB = 2**20


async def full(one: Any) -> None:
    await one.queues.catalog.shard_count("q")
    one.queues.catalog.store_memory.heard(MIB, MIB)


async def impossible(one: Any) -> None:
    await one.link.call("HSET", f"{{{CLUSTER}}}:queues", "q", b'{"durability": "quorum"}')
    await one.queues.catalog.shard_count("q")


async def crowded(one: Any) -> None:
    """The store is away, and as many calls wait for it as may."""
    await one.queues.catalog.shard_count("q")
    await one.link.stop()


REFUSALS = {"FULL": full, "NOQUORUM": impossible, "STOREDOWN": crowded}


async def at_a_time(door: doubles.Door, *texts: bytes) -> list[list[Any]]:
    """
    What each line gets, errors by their first words, when all of it is read in one turn of the
    loop.
    """
    lines = [await door.dial() for _ in texts]
    for line in lines:
        assert await line.call("ECHO", "there") == b"there"
    for line, text in zip(lines, texts, strict=True):
        line.writer.write(text)  # at once, as long as the kernel takes it
    found = []
    for line, text in zip(lines, texts, strict=True):
        replies = [await line.reply() for _ in range(text.count(b"\r\n"))]
        found.append(
            [
                str(one).partition(" ")[0] if isinstance(one, hiredis.ReplyError) else one
                for one in replies
            ]
        )
    return found


@pytest.mark.parametrize("word", REFUSALS)
async def test_a_refusal_of_all_that_has_gathered_changes_no_places(
    node: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """With the last of a full batch all of it went, and was refused within that last request."""
    one = await node()
    monkeypatch.setattr(link_module, "BACKLOG_MAX", 0)
    own = ITEMS_MAX - TOGETHER_MAX
    async with doubles.Door(queues=one.queues) as door:
        await REFUSALS[word](one)
        before, after = await at_a_time(
            door,
            b"Q.PUT q x\r\n" * TOGETHER_MAX,
            b"Q.PUT q x\r\n" * own + b"ECHO first\r\nECHO last\r\n",
        )
    assert before == [word] * TOGETHER_MAX
    assert after == [word] * own + [b"first", b"last"]


class Told:
    """A receiver that notes that it was told."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def done(self) -> bool:
        return bool(self.errors)

    def set_result(self, result: Any) -> None:
        raise AssertionError(result)

    def set_exception(self, error: BaseException) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("word", REFUSALS)
async def test_nobody_is_told_while_an_item_is_added(
    node: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch, eventually: Any, word: str
) -> None:
    one = await node()
    monkeypatch.setattr(link_module, "BACKLOG_MAX", 0)
    await REFUSALS[word](one)
    (shard,) = one.queues.catalog.shards_known()
    told = [Told() for _ in range(ITEMS_MAX + 1)]
    for n, receiver in enumerate(told):
        shard.add("queue.put", (f"t{n}", "", b"x"), receiver)
        assert not any(one.errors for one in told)
    alone = shard.run("queue.put", ("t", "", b"x"))
    assert not any(one.errors for one in told)
    await eventually(lambda: all(one.errors for one in told) and alone.done())
    assert (
        {type(error).code for one in told for error in one.errors}
        == {alone.exception().code}
        == {word}
    )


class Hasty(RecordingQueues):
    """While each second put is being asked for, the one before it is answered; then it is."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Any = None

        self.fast_path: Any = SimpleNamespace(put=self._put_at_once)

    def _put_at_once(self, *request: Any) -> Any:
        before, self.before = self.before, None if self.before else request[2]
        if before is not None:
            before.set_result(1)
            asyncio.get_running_loop().call_soon(request[2].set_result, 1)
        return request[1].decode()


async def test_an_answer_within_a_handler_begins_nothing_that_stands_behind_its_request() -> None:
    async with doubles.Door(queues=Hasty()) as door:
        (told,) = await at_a_time(
            door, b"Q.PUT q a\r\nQ.PUT q b\r\nECHO c\r\nQ.PUT q d\r\nQ.PUT q e\r\nECHO f\r\n"
        )
    assert told == [b"a", b"b", b"c", b"d", b"e", b"f"]
