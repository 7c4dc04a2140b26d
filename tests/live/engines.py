"""Engines that fail over by themselves, as the fault runs see them: killed, paused, and looked at."""

from __future__ import annotations

import signal
import time
from typing import Protocol

import redis
from sentinel_servers import SentinelSet


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
