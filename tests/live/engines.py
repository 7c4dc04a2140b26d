"""Engines that fail over by themselves, as the fault runs see them: killed, paused, and looked at."""

from __future__ import annotations

import random
import signal
import time
from typing import Protocol

import redis
from cluster_servers import ClusterSet
from live.processes import CLUSTER, until
from live.workload import JOBS
from sentinel_servers import SentinelSet

from tidewarden.store.slots import slot_of

SHARDS = 4


def shard_key(shard: int) -> str:
    """What all keys of a shard of the queue of jobs begin with."""
    return f"{{{CLUSTER}:{JOBS}:{shard}}}"


class Engine(Protocol):
    """A store whose life is its own affair. ``faults``: what else can be done to it than to kill and pause a primary."""

    port: int
    faults: tuple[str, ...]

    def url(self, port: int = 0) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def client(self, key: str = "") -> redis.Redis:
        """Of the server where ``key`` lies now."""

    def kill_primary(self) -> None:
        """SIGKILL; returns when another has taken over and the dead one is back as its replica, whole."""

    def pause_primary(self, seconds: float) -> None:
        """SIGSTOP, SIGCONT; returns when there is one primary, and its replica whole."""

    def move_slots(self) -> None:
        """Of an engine that has some: a few of them from one primary to another."""


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

    def kill_primary(self) -> None:
        self._servers.kill_primary()
        self._servers.revive()

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
        return redis.Redis(port=self._servers.owner(slot_of(key)), password=self._servers.password or None)

    def _primary(self) -> int:
        """One that has a shard of the queue of jobs."""
        return self._servers.owner(slot_of(shard_key(self._dice.randrange(SHARDS))))

    def _calm(self) -> None:
        """Every slot has a primary that runs, every server is heard of, and each replica is whole."""

        def settled() -> bool:
            for port in self._servers.ports:
                owners, role = self._servers.owners(port), self._servers.say(port, "ROLE")
                known = {one for *_, primary, replicas in owners for one in (primary, *replicas)}
                if known != set(self._servers.ports) or self._servers.info(port)["cluster_state"] != "ok":
                    return False
                if role[0] != "master" and role[3] != "connected":
                    return False
            return True

        until(settled, 60, 0.1, what="the engine is whole")

    def kill_primary(self) -> None:
        port = self._primary()
        self._servers.kill(port)
        until(lambda: port not in self._primaries(port), what="the failover")
        self._servers.spawn(port)
        self._calm()

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
