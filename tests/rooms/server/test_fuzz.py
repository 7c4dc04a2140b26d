"""
Rubbish at the RESP door, before a real queue, real locks and schedules, and a real store.

Whatever one connection sends: it hears nothing but valid replies and documented error words, the
door lives, and another connection's tasks come and go as ever. ``live/limits/test_fuzz.py`` does
the same to a whole node and watches its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.doors import doubles
from support.doors.doubles import framed
from support.doors.resp_fuzz import ALL, GOOD, PLAIN, Answers, broken, ending, errors_in, stream
from support.queues.waiting_locks import locks_of

from tidewarden.scheduler.schedules import Schedules
from tidewarden.server.access import users
from tidewarden.server.verbs.table import COMMANDS

LIMIT_S = 20.0
LOGIN = ("admin", doubles.SECRET)
EXAMPLES = settings().max_examples


class Victim:
    """A door, and a connection at it whose work must not be disturbed."""

    def __init__(self, door: Any, well: Any) -> None:
        self.door = door
        self.well = well
        self.worked = 0
        self._loop = asyncio.get_running_loop()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """
        What a coroutine returns, for Hypothesis, which is synchronous and so in a thread of its
        own.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(3 * LIMIT_S)

    async def work(self) -> None:
        """Put, take and acknowledge a task; every answer is as it should be."""
        self.worked += 1
        name = b"w%d" % self.worked
        self.well.send(
            ("Q.PUT", "well", b"payload\r\n" + name, "ID", name),
            "Q.TAKE COUNT 5 WAIT 20000 FROM well",
        )
        assert await self.well.reply() == name
        ((queue, task_id, lease, payload, attempt, _, _),) = await self.well.reply()
        assert (queue, task_id, payload, attempt) == (b"well", name, b"payload\r\n" + name, 1)
        assert await self.well.call("Q.ACK", "well", name, lease) == b"OK"

    async def friend(self) -> Any:
        """A connection that was let in."""
        line = await self.door.dial()
        line.send(("AUTH", *LOGIN))
        assert await line.reader.readexactly(5) == b"+OK\r\n"
        return line

    async def send(self, data: bytes, cuts: list[int], end: str, marker: bytes = b"") -> Answers:
        """
        A newcomer sends this in pieces; what it heard until the marker came, the door hung up, or
        it had enough.
        """
        line = await (self.door.dial() if end == "stranger" else self.friend())
        answers = Answers()
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        for start, stop in itertools.pairwise(edges):
            line.writer.write(data[start:stop])
            await asyncio.sleep(0)
        if end in ("half close", "stranger"):
            with contextlib.suppress(OSError):  # hung up on already
                line.writer.write_eof()
        try:
            async with asyncio.timeout(0.02 if end == "leave" else LIMIT_S):
                while got := await line.reader.read(65536):
                    if marker in answers.feed(got):
                        break
                else:
                    answers.over()
        except ConnectionResetError:
            pass
        except TimeoutError:
            waits = self.door.server.context.waiting > 0
            assert end == "leave" or waits, f"no answer to {data!r}"
        line.drop()
        self.door.lines.remove(line)
        return answers

    async def gone(self) -> None:
        """Until only the connection that works is left."""
        async with asyncio.timeout(LIMIT_S):
            while (
                len(self.door.server.context.peers.connections) > 1
                or self.door.server.context.waiting
            ):
                await asyncio.sleep(0.001)


@pytest.fixture
async def victim(node: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Victim]:
    monkeypatch.setattr(users, "FAILURE_DELAY_S", 0.0)
    n0 = await node("n0")
    queues = n0.queues
    door = doubles.Door(queues=queues, users=(doubles.ADMIN,))
    locks = locks_of(n0, wait_max_ms=door.config.limits.wait_ms)
    door.provide(locks=locks, schedules=Schedules(queues))
    defects: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
    async with door:
        found = Victim(door, await door.dial())
        assert await found.well.call("AUTH", *LOGIN) == b"OK"
        await found.work()
        yield found
        await found.work()
        await found.gone()
        assert door.server.context.errors["INTERNAL"] == 0
    assert not defects


def examples(count: int) -> Any:
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


def test_every_verb_has_requests_to_be_broken() -> None:
    assert GOOD.keys() == {command.name for command in COMMANDS.values()}


@pytest.mark.thorough
async def test_the_requests_to_be_broken_are_good(victim: Victim) -> None:
    """
    Else breaking them would show little: none but those of other versions is refused for its form.
    """
    for number, request in enumerate(ALL):
        marker = b"marker %d" % number
        answers = await victim.send(
            framed(request) + ending(marker.decode(), LOGIN), [], "stay", marker
        )
        refused = [error for reply in answers.replies[:1] for error in errors_in(reply)]
        if COMMANDS[request[0]].group != "later" and b"LANE" not in request:
            of_form = [error for error in refused if str(error).startswith("BADARG")]
            # the node here has one store alone
            of_form = [error for error in of_form if "about replicated" not in str(error)]
            assert not of_form, (request, refused)


@pytest.mark.thorough
async def test_any_number_of_arguments_to_any_verb(victim: Victim) -> None:
    """Each request cut after each of its words, and with one to three words more."""
    marker = b"marker"
    for request in ALL:
        if request[0] != b"QUIT":
            cut = [request[:size] for size in range(1, len(request))]
            longer = [request + [word] * count for count in (1, 2, 3) for word in (b"x", b"5")]
            data = b"".join(framed(words) for words in (*cut, *longer)) + ending(
                marker.decode(), LOGIN
            )
            answers = await victim.send(data, [], "stay", marker)
            assert marker in answers.replies
    await victim.work()


@pytest.mark.thorough
async def test_any_arguments_to_any_verb(victim: Victim) -> None:
    numbers = iter(range(10**9))

    @examples(2 * EXAMPLES)
    @given(
        st.lists(broken(ALL), min_size=1, max_size=20), st.lists(st.integers(0, 5000), max_size=3)
    )
    def play(requests: list[list[bytes]], cuts: list[int]) -> None:
        marker = b"marker %d" % next(numbers)
        data = b"".join(framed(request) for request in requests) + ending(marker.decode(), LOGIN)
        answers = victim.run(victim.send(data, cuts, "stay", marker))
        if marker in answers.replies and not {request[0].upper() for request in requests} & {
            b"CLIENT",
            b"RESET",
        }:
            assert len(answers.replies) == len(requests) + 4, "one reply for each request"
        victim.run(victim.work())

    await asyncio.to_thread(play)


async def test_every_byte_by_itself(victim: Victim) -> None:
    """Each request cut at each of its bytes, the lot of them on one connection."""
    line = await victim.friend()
    answers = Answers()
    for number, request in enumerate(PLAIN):
        for byte in framed(request):
            line.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            while len(answers.replies) == number:
                answers.feed(await line.reader.read(65536))
        assert len(answers.replies) == number + 1
    await line.close()


@pytest.mark.thorough
async def test_thousands_in_a_pipeline(victim: Victim) -> None:
    """
    Any verbs in any order, several connections at once: each request has its reply, in its place.
    """

    async def flood(seed: int) -> None:
        dice = random.Random(seed)
        line = await victim.friend()
        answers = Answers()
        requests = [dice.choice(PLAIN) for _ in range(200)]
        expected = [
            [b"%d-%d-%d" % (seed, n, m) for m in range(n % 4)] for n in range(len(requests))
        ]
        data = b"".join(
            framed(request)
            + b"".join(framed(("Q.PUT", "flood", "x", "ID", name)) for name in names)
            + framed("ECHO after")
            for request, names in zip(requests, expected, strict=True)
        )
        total = sum(2 + len(names) for names in expected)

        async def listen() -> None:
            while len(answers.replies) < total:
                got = await line.reader.read(65536)
                assert got, "hung up on"
                answers.feed(got)

        listening = asyncio.ensure_future(listen())
        for start in range(
            0, len(data), 5000
        ):  # a peer may send no more ahead than a limit, while one of its requests waits
            line.writer.write(data[start : start + 5000])
            await line.writer.drain()
            while data[: start + 5000].count(b"*") > len(answers.replies) + 300:
                await asyncio.sleep(0.001)
                assert not listening.done()
        await asyncio.wait_for(listening, 3 * LIMIT_S)
        replies = iter(answers.replies)
        for names in expected:
            next(replies)
            assert [next(replies) for _ in names] == names
            assert next(replies) == b"after"
        await line.close()

    flooding = asyncio.gather(*(flood(seed) for seed in range(3)))
    while not flooding.done():
        await victim.work()
    await flooding


@pytest.mark.thorough
async def test_what_requests_leave_dies_at_once(victim: Victim) -> None:
    """
    The node's collector of rings runs rarely (``process.py``): in one, a payload or a chunk of
    rubbish lasts for long.

    An exception that is kept holds its trace, and that every local variable of the functions it
    came through.
    """

    async def all_of_it() -> None:
        line = await victim.friend()
        for number, request in enumerate(PLAIN):
            line.send(
                ("Q.PUT", "q", f"payload {number}"),
                tuple(request),
                ("Q.TAKE", "FROM", "q"),
                ("Q.PUT", "q", "x", "DELAY", "x"),
            )
            for _ in range(4):
                await line.reply()
        line.drop()
        for rubbish in (
            b"x" * 70_000,
            b"*1\r\n*1\r\n",
            b"*2147483647\r\n",
            b"*1\r\n$5\r\nabc",
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            await victim.send(rubbish, [], "half close")
            await victim.send(rubbish, [], "stranger")
        await victim.gone()

    await all_of_it()
    for _ in range(3):  # what former tests left is gone before it counts
        await asyncio.sleep(0.01)
        gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await all_of_it()
        await victim.work()
        gc.collect()
        ours = Counter(
            type(thing).__qualname__
            for thing in gc.garbage
            if type(thing).__module__.startswith("tidewarden")
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours


@pytest.mark.thorough
async def test_any_bytes(victim: Victim) -> None:
    @examples(2 * EXAMPLES)
    @given(
        stream(),
        st.lists(st.integers(0, 100_000), max_size=6),
        st.sampled_from(["half close", "leave", "stranger"]),
    )
    def play(data: bytes, cuts: list[int], end: str) -> None:
        victim.run(victim.send(data, cuts, end))
        victim.run(victim.work())

    await asyncio.to_thread(play)
