"""
Engines that fail over by themselves, as the fault runs see them: killed, paused, and looked at.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import redis
from support.cluster.harness import Cluster
from support.cluster.node_process import Node
from support.cluster.processes import CLUSTER, until
from support.faults.faulty import LOG_BYTES, MARGIN_S, FaultyNode
from support.faults.workload import JOBS
from support.providers.scripted_provider import ScriptedProvider
from support.store.clusters import ClusterSet
from support.store.sentinels import SentinelSet

from tidewarden.store.redis_cluster.slots import slot_of

SHARDS = 4


def shard_key(shard: int) -> str:
    """What all keys of a shard of the queue of jobs begin with."""
    return f"{{{CLUSTER}:{JOBS}:{shard}}}"


class Engine(Protocol):
    """
    A store whose life is its own affair. ``faults``: what else can be done to it than to kill and
    pause a primary.
    """

    port: int
    faults: tuple[str, ...]

    def url(self, port: int = 0) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def client(self, key: str = "") -> redis.Redis:
        """Of the server where ``key`` lies now."""

    def kill_primary(self, key: str = "", then: Callable[[], object] = bool) -> None:
        """
        SIGKILL to the primary of ``key``, or of any; ``then()`` at once. Returns when another has
        taken over and the dead one is back as its replica, whole.
        """

    def freeze_replica(self, key: str) -> Callable[[], object]:
        """
        The replica of the primary of ``key`` is stopped and its connection cut, so that it lacks
        what is written from now on. Returns what has it go on.
        """

    def pause_primary(self, seconds: float) -> None:
        """SIGSTOP, SIGCONT; returns when there is one primary, and its replica whole."""

    def move_slots(self) -> None:
        """Of an engine that has some: a few of them from one primary to another."""


def frozen(replica: subprocess.Popen[bytes], primary: redis.Redis) -> Callable[[], object]:
    """
    See :meth:`Engine.freeze_replica`. What was on its way to a stopped process, it would read when
    it goes on.
    """
    replica.send_signal(signal.SIGSTOP)
    primary.client_kill_filter(_type="replica")
    return lambda: replica.send_signal(signal.SIGCONT)


class UnderSentinel:
    """A primary and a replica under three sentinels."""

    port = 0
    faults: tuple[str, ...] = ()

    def __init__(self, servers: SentinelSet) -> None:
        self._servers = servers

    def url(self, port: int = 0) -> str:
        return self._servers.url()

    def start(self) -> None:
        """It runs."""

    def kill(self) -> None:
        """Who made it ends it."""

    def client(self, key: str = "") -> redis.Redis:
        return redis.Redis(port=self._servers.primary(), password=self._servers.password or None)

    def kill_primary(self, key: str = "", then: Callable[[], object] = bool) -> None:
        self._servers.kill_primary()
        then()
        self._servers.revive()

    def freeze_replica(self, key: str) -> Callable[[], object]:
        primary = self._servers.primary()
        replica = next(port for port in self._servers.ports if port != primary)
        return frozen(self._servers.processes[replica], self._servers.client(primary))

    def pause_primary(self, seconds: float) -> None:
        port = self._servers.primary()
        self._servers.send(port, signal.SIGSTOP)
        time.sleep(seconds)
        self._servers.send(port, signal.SIGCONT)
        time.sleep(1.0)  # the sentinels tell it to follow, if they do
        self._servers.calm()

    def move_slots(self) -> None:
        raise NotImplementedError


class UnderCluster:
    """A Redis Cluster of a few primaries, each with a replica."""

    port = 0
    faults: tuple[str, ...] = ("move slots", "move slots")

    def __init__(self, servers: ClusterSet, dice: random.Random) -> None:
        self._servers = servers
        self._dice = dice

    def url(self, port: int = 0) -> str:
        return self._servers.url()

    def start(self) -> None:
        """It runs."""

    def kill(self) -> None:
        """Who made it ends it."""

    def client(self, key: str = "") -> redis.Redis:
        return redis.Redis(
            port=self._servers.owner(slot_of(key)), password=self._servers.password or None
        )

    def _primary(self) -> int:
        """One that has a shard of the queue of jobs."""
        return self._servers.owner(slot_of(shard_key(self._dice.randrange(SHARDS))))

    def _calm(self) -> None:
        """
        Every slot has a primary that runs, every server is heard of, and each replica is whole.
        """

        def settled() -> bool:
            for port in self._servers.ports:
                owners, role = self._servers.owners(port), self._servers.say(port, "ROLE")
                known = {one for *_, primary, replicas in owners for one in (primary, *replicas)}
                if (
                    known != set(self._servers.ports)
                    or self._servers.info(port)["cluster_state"] != "ok"
                ):
                    return False
                if role[0] != "master" and role[3] != "connected":
                    return False
            return True

        until(settled, 60, 0.1, what="the engine is whole")

    def kill_primary(self, key: str = "", then: Callable[[], object] = bool) -> None:
        port = self._servers.owner(slot_of(key)) if key else self._primary()
        self._servers.kill(port)
        then()
        until(lambda: port not in self._primaries(port), what="the failover")
        self._servers.spawn(port)
        self._calm()

    def freeze_replica(self, key: str) -> Callable[[], object]:
        primary = self._servers.owner(slot_of(key))
        (replica,) = next(
            rest for _, _, one, rest in self._servers.owners(primary) if one == primary
        )
        return frozen(self._servers.processes[replica], self._servers.client(primary))

    def pause_primary(self, seconds: float) -> None:
        port = self._primary()
        self._servers.processes[port].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._servers.processes[port].send_signal(signal.SIGCONT)
        time.sleep(2.0)  # it hears of another that has taken over
        self._calm()

    def _primaries(self, but: int) -> set[int]:
        asked = next(port for port in self._servers.ports if port != but)
        return {primary for _, _, primary, _ in self._servers.owners(asked)}

    def move_slots(self) -> None:
        for shard in self._dice.sample(range(SHARDS), 2):
            slot = slot_of(shard_key(shard))
            source = self._servers.owner(slot)
            target = self._dice.choice(sorted(self._primaries(0) - {source}))
            self._servers.move_slot(slot, source, target, slowly_s=0.002)


class EngineCluster(Cluster):
    """
    Nodes on an engine of one's own, and a provider that counts, whose answers are waited for
    ``timeout_s``.

    ``options``: as of :class:`Cluster`.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        provider: ScriptedProvider,
        *,
        timeout_s: float = 3.0,
        **options: Any,
    ) -> None:
        self._engine, self._provider, self._timeout_s = engine, provider, timeout_s
        super().__init__(folder, log__file_bytes=str(LOG_BYTES), **options)

    def make_store(self) -> Any:
        return self._engine

    def config_text(self, name: str, store_port: int = 0, **changes: str) -> str:
        text = super().config_text(
            name, store_port, store__url=json.dumps(self._engine.url()), **changes
        )
        return text + self._provider.toml(self._provider.port, MARGIN_S, self._timeout_s)

    def make_node(self, name: str, base: int, text: str) -> Node:
        # whose log is all of it
        return FaultyNode(name, self.folder / name, base, text, self.secret)
