"""Tells how a take that waits is woken, by whatever makes a task ready: ``*.txt``."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.queues.parked_takes import wait_in
from support.transcripts.recording import Recording, compare, store_watched

from tidewarden.queue import TaskSpec

HERE = Path(__file__).parent


@dataclass
class Stage:
    """Two nodes on one store, a consumer that waits at n0, and what is noted of them."""

    n0: Any
    n1: Any
    recording: Recording
    eventually: Any
    waiting: Any = None

    async def wait(self, wait_ms: int = 0) -> None:
        """Have a consumer take at n0, and wait there."""
        self.recording.note("consumer", "takes at n0, and waits")
        if wait_ms:
            self.waiting = self.n0.queues.take(
                self.n0.queues.open_session(), ["q"], wait_ms=wait_ms
            )
        else:
            _, self.waiting = await wait_in(self.eventually, self.n0)

    async def hold(self, **options: Any) -> tuple[Any, Any]:
        """Have another consumer hold the task at n1; its session and the task."""
        await self.n1.queues.put("q", TaskSpec(id="job"))
        session = self.n1.queues.open_session()
        self.recording.note("other", "takes at n1")
        (task,) = await self.n1.queues.take(session, ["q"], **options)
        return session, task


Act = Callable[[Stage], Awaitable[None]]


async def put_at_another_node(stage: Stage) -> None:
    """
    A put at another node

    The take that found nothing left its node's name with the shard. The put finds the name there, and
    tells that node; nobody asks in between.
    """
    await stage.wait()
    stage.recording.note("producer", "puts job at n1")
    await stage.n1.queues.put("q", TaskSpec(id="job"))


async def put_at_the_same_node(stage: Stage) -> None:
    """
    A put at the same node

    The node sends the waiting take along with the put: one script call, and no message.
    """
    await stage.wait()
    stage.recording.note("producer", "puts job at n0")
    await stage.n0.queues.put("q", TaskSpec(id="job"))


async def a_task_falls_due(stage: Stage) -> None:
    """
    A delayed task falls due

    The node is told of the due time when the task is put, and asks again at that moment.
    """
    await stage.wait()
    stage.recording.note("producer", "puts job at n1, delayed")
    await stage.n1.queues.put("q", TaskSpec(id="job", delay_ms=150))


async def a_lease_ends(stage: Stage) -> None:
    """
    Another consumer's lease ends

    The empty answer said when the lease ends. The node asks again at that moment.
    """
    await stage.hold(lease_ms=300)
    await stage.wait()


async def a_release(stage: Stage) -> None:
    """
    Another consumer hands its task on

    A release wakes as a put does.
    """
    session, task = await stage.hold()
    await stage.wait()
    stage.recording.note("other", "releases job")
    await stage.n1.queues.release(session, "q", "job", task.lease)


async def a_disconnect(stage: Stage) -> None:
    """
    Another consumer's connection closes

    What it held is ready again at once; the attempt is given back.
    """
    session, _ = await stage.hold()
    await stage.wait()
    stage.recording.note("other", "hangs up")
    await stage.n1.queues.close_session(session)


async def a_burial_and_a_kick(stage: Stage) -> None:
    """
    A buried task is kicked

    Its burial wakes nobody; the kick does, as a put.
    """
    session, task = await stage.hold()
    await stage.wait()
    stage.recording.note("other", "buries job")
    await stage.n1.queues.bury(session, "q", "job", task.lease)
    stage.recording.note("operator", "kicks job at n1")
    await stage.n1.queues.buried.kick("q", ids=["job"])


async def a_pause_ends(stage: Stage) -> None:
    """
    A paused queue is resumed

    Tasks are put into a paused queue as ever, and wake nobody before it is resumed.
    """
    await stage.n1.queues.admin.pause("q")
    await stage.wait()
    stage.recording.note("producer", "puts job at n1")
    await stage.n1.queues.put("q", TaskSpec(id="job"))
    stage.recording.note("operator", "resumes the queue at n1")
    await stage.n1.queues.admin.resume("q")


async def a_node_dies(stage: Stage) -> None:
    """
    The node of another consumer dies

    The leader's reaper ends the leases of the dead node, shard by shard.
    """
    await stage.hold()
    await stage.wait()
    stage.recording.note("leader", "reaps the node n1")
    await stage.n0.queues.scripts.run("queue.reap", "q", 0, [1, "n1", 1, 100])


async def the_wait_is_over(stage: Stage) -> None:
    """
    Nothing comes in time

    The take ends empty at its node, which asks nobody for that.
    """
    await stage.wait(300)


SCENES: tuple[Act, ...] = (
    put_at_another_node, put_at_the_same_node, a_task_falls_due, a_lease_ends, a_release,
    a_disconnect, a_burial_and_a_kick, a_pause_ends, a_node_dies, the_wait_is_over,
)  # fmt: skip


@pytest.mark.parametrize("act", SCENES, ids=lambda act: act.__name__)
async def test_how_a_take_is_woken(
    act: Act, valkey: Any, node: Any, eventually: Any, rewrite: bool
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    for each in (n0, n1):
        await each.queues.catalog.shard_count("q")
    recording = Recording({"job"}, {script.sha: script.name for script in n0.scripts}, waiting="q")
    async with store_watched(recording, valkey.path):
        stage = Stage(n0, n1, recording, eventually)
        await act(stage)
        given = [f"{task.id}, attempt {task.attempt}" for task in await stage.waiting]
        recording.note("consumer", f"is given {', '.join(given) or 'nothing'}")
        await recording.caught_up(n0.link.call)
    title, _, why = textwrap.dedent(act.__doc__ or "").strip().partition("\n\n")
    compare(
        f"{title}\n\n{why}\n\n{recording.text()}", HERE / f"{act.__name__}.txt", rewrite=rewrite
    )
