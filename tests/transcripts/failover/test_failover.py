"""Tells how leadership passes from one node to another, with real nodes: ``*.txt``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from support.cluster.harness import CALM, Cluster, Node, cluster_of_module, until
from support.queues.desk import queue_scripts
from support.transcripts.recording import Call, Recording, compare, server_watched

HERE = Path(__file__).parent
LONG_MS = 600_000  # a lease that surely does not end by its time


three = cluster_of_module(extra=CALM)


def of_the_cluster(call: Call) -> str:
    """Say what a script of the cluster's own did; nothing of those that run all the time."""
    said = [word.decode("latin-1") for word in call.words]
    if call.name == "cluster.claim":
        wrote = any(words[0] == b"HSET" for words in call.inner)
        by = said[2].partition(".")[0]
        return f"{by} cluster.claim: epoch {said[1]} {'is in the fence' if wrote else 'is refused'}"
    if call.name == "cluster.register":
        return f"{said[2]} cluster.register: {said[2]} is registered under a new boot"
    if call.name == "cluster.bury":
        return f"cluster.bury: {said[1]} is registered no more"
    return ""


@dataclass
class Stage:
    """Three nodes, one of which leads: ``old``. ``next`` is known once another one does."""

    cluster: Cluster
    recording: Recording
    old: Node
    epoch: int
    consumer: redis.Redis
    lease: int = 0

    @property
    def successor(self) -> Node:
        """Return who leads under a later epoch, once it sweeps."""
        found = until(lambda: self.cluster.sweeper(self.epoch), what="another one leads")
        node: Node = found[0]
        return node

    def hold(self) -> None:
        """Have a consumer take the task at the leader."""
        self.recording.note("producer", f"puts job at {self.old.name}")
        self.old.say("Q.PUT", "mail", "payload", "ID", "job")
        self.recording.note("consumer", f"takes at {self.old.name}, and holds job")
        words = ("Q.TAKE", "WAIT", 60_000, "LEASE", LONG_MS, "FROM", "mail")
        ((_, _, self.lease, *_),) = self.consumer.execute_command(*words)

    def reaped(self) -> None:
        """Wait until the old leader counts as dead."""
        until(lambda: self.recording.has("is registered no more"), what="it is declared dead")

    def acks(self) -> None:
        """Have the consumer acknowledge the task under its first lease."""
        answer = "OK"
        try:
            self.consumer.execute_command("Q.ACK", "mail", "job", self.lease)
        except redis.ResponseError as error:
            answer = str(error).partition(" ")[0]
        self.recording.note("consumer", f"acknowledges job at {self.old.name}: {answer}")

    def takes_again(self, node: Node) -> None:
        """Have another consumer take the task and acknowledge it."""
        client = node.client()
        words = ("Q.TAKE", "WAIT", 60_000, "LEASE", LONG_MS, "FROM", "mail")
        ((_, task_id, lease, _, attempt, *_),) = client.execute_command(*words)
        self.recording.note("other", f"takes {task_id} at {node.name}, attempt {attempt}")
        client.execute_command("Q.ACK", "mail", task_id, lease)
        client.close()

    def see(self) -> None:
        """Note what each node that runs sees, once they agree."""
        leader = self.cluster.leader()
        until(self._agreed, what="all see the same")
        epoch = int(leader.status()["epoch"])
        self.recording.note("view", f"{leader.name} leads under epoch {epoch}, and sweeps")
        for node in self.cluster.others(leader):
            self.recording.note("view", f"{node.name} follows {leader.name}, epoch {epoch}")

    def _agreed(self) -> bool:
        seen = self.cluster.statuses().values()
        return len({(status["leader"], status["epoch"]) for status in seen}) == 1


def the_leader_is_killed(stage: Stage) -> None:
    """
    The leader is killed

    The others elect one of them; it writes its epoch into the store's fence, by which every later
    word of the old leader would be refused. Whoever has not been heard for two seconds is reaped:
    its consumers' tasks are ready again, at no attempt. Started anew it is a follower.
    """
    stage.hold()
    stage.recording.note("test", f"kills {stage.old.name} (SIGKILL)")
    stage.old.kill()
    successor = stage.successor
    stage.reaped()
    stage.takes_again(successor)
    stage.see()
    stage.recording.note("test", f"starts {stage.old.name}")
    stage.old.start()
    until(stage.old.ready, what="it serves")
    stage.see()


def the_leader_is_paused(stage: Stage) -> None:
    """
    The leader is paused, and wakes

    As if it had been killed, for the others. It wakes and finds that its boot was declared dead: it
    registers under a new one and follows. What its consumer held is somebody else's.
    """
    stage.hold()
    stage.recording.note("test", f"pauses {stage.old.name} (SIGSTOP)")
    stage.old.freeze()
    successor = stage.successor
    stage.reaped()
    stage.takes_again(successor)
    stage.recording.note("test", f"wakes {stage.old.name} (SIGCONT)")
    stage.old.thaw()
    until(lambda: stage.recording.has("registered under a new boot"), what="it has a new boot")
    stage.acks()
    stage.see()


def leadership_is_handed_over(stage: Stage) -> None:
    """
    Leadership is handed over

    Only the sweep moves. Consumers notice nothing of it.
    """
    stage.hold()
    chosen = stage.cluster.others(stage.old)[0]
    stage.recording.note("operator", f"R.TRANSFER {chosen.name}")
    assert stage.old.say("R.TRANSFER", chosen.name) == chosen.name
    assert stage.successor is chosen
    stage.see()
    stage.acks()


def the_leader_is_asked_to_stop(stage: Stage) -> None:
    """
    The leader is asked to stop

    It hands leadership over and lets its consumers' tasks go: nobody has to find out that it is gone.
    """
    stage.hold()
    stage.recording.note("test", f"stops {stage.old.name} (SIGTERM)")
    stage.old.terminate()
    successor = stage.successor
    stage.takes_again(successor)
    stage.see()


Act = Callable[[Stage], None]
SCENES: tuple[Act, ...] = (
    the_leader_is_killed, the_leader_is_paused, leadership_is_handed_over,
    the_leader_is_asked_to_stop,
)  # fmt: skip


def told(text: str, old: str, successor: str, epoch: int) -> str:
    """Give nodes the names of their parts in the story, and count epochs from its first."""
    parts = {old: "old", successor: "next"}
    text = re.sub(r"\bn[0-2]\b", lambda found: parts.get(found[0], "third"), text)
    text = re.sub(r"epoch (\d+)", lambda found: f"epoch {int(found[1]) - epoch + 1}", text)
    views = re.compile(r"(?:^view +\w+ follows .*\n)+", re.MULTILINE)
    return views.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True))), text)


@pytest.mark.parametrize("act", SCENES, ids=lambda act: act.__name__)
async def test_how_leadership_passes(act: Act, three: Cluster, rewrite: bool) -> None:
    await asyncio.to_thread(three.heal)
    with three.valkey.client() as store:
        store.delete(*store.keys("{tidewarden:mail:0}*") or ["none"])
    old = three.leader()
    epoch = int(old.status()["epoch"])
    names = {script.sha: script.name for script in queue_scripts()}
    recording = Recording({"job"}, names, tells=of_the_cluster)
    reader, writer = await asyncio.open_connection("127.0.0.1", three.valkey.port, limit=1 << 26)
    writer.write(f"AUTH {three.valkey.password}\r\n".encode())
    await reader.readline()
    consumer = old.client()
    stage = Stage(three, recording, old, epoch, consumer)
    async with server_watched(recording, reader, writer):
        await asyncio.to_thread(stage.see)
        await asyncio.to_thread(act, stage)
        with three.valkey.client() as store:
            await recording.caught_up(
                lambda *words: asyncio.to_thread(store.execute_command, *words)
            )
    with contextlib.suppress(OSError, redis.RedisError):
        consumer.close()
    title, _, why = textwrap.dedent(act.__doc__ or "").strip().partition("\n\n")
    text = told(recording.text(), old.name, three.leader().name, epoch)
    compare(f"{title}\n\n{why}\n\n{text}", HERE / f"{act.__name__}.txt", rewrite=rewrite)
