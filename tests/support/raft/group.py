"""Raft members on loopback, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import Cluster, Config, Node
from tidewarden.config.load import Raft as RaftSection
from tidewarden.errors import NoLeader, Timeout
from tidewarden.raft import RaftMember

SECRET = "a cluster secret of the tests"
PACE = 1.0


@dataclass
class Group:
    """Members in this process, by name; those that were killed stay in ``configs``."""

    configs: dict[str, Config]
    running: dict[str, RaftMember]
    changes: dict[str, int]

    async def start(self, *names: str) -> None:
        for name in names or tuple(self.configs):

            def changed(name: str = name) -> None:
                self.changes[name] = self.changes.get(name, 0) + 1

            raft = RaftMember(self.configs[name], SECRET, SystemClock(), changed)
            await raft.start()
            self.running[name] = raft

    async def end(self, name: str, gracefully: bool = False) -> None:
        await self.running.pop(name).stop(gracefully)

    async def elected(self) -> RaftMember:
        """The one leader that every running member names."""

        def agreed() -> RaftMember | None:
            leaders = [raft for raft in self.running.values() if raft.is_leader()]
            named = {raft.leader() for raft in self.running.values()}
            return leaders[0] if len(leaders) == 1 and named == {leaders[0].name} else None

        leader = await wait_for(agreed)
        await asyncio.wait_for(leader.elected(), 60)
        return leader

    async def claim(self, seen: int = 0) -> int:
        """
        A claim of whoever leads; repeated, as a daemon would, when leadership passes on meanwhile.
        """
        while True:
            leader = await self.elected()
            with contextlib.suppress(NoLeader, Timeout):
                return await leader.claim(1, seen)


async def wait_for(condition: Callable[[], Any], limit_s: float = 120) -> Any:
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit_s} s"
        await asyncio.sleep(0.01)
    return value


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Callable[..., Group]]:
    """``group(3)`` makes a group of three members, none of them started."""
    groups: list[Group] = []

    def make(size: int, pace: float = PACE) -> Group:
        bases: list[int] = []
        while len(bases) < size:
            base = free_ports(4)
            if all(abs(base - other) > 5 for other in bases):
                bases.append(base)
        members = {f"n{i}": f"127.0.0.1:{base}" for i, base in enumerate(bases)} if size > 1 else {}
        configs = {
            f"n{i}": Config(
                cluster=Cluster(members=members),
                node=Node(name=f"n{i}", base_port=base, data_dir=str(tmp_path / f"n{i}")),
                raft=RaftSection(pace=pace),
            )
            for i, base in enumerate(bases)
        }
        groups.append(Group(configs, {}, {}))
        return groups[-1]

    yield make
    for made in groups:
        for name in list(made.running):
            await made.end(name)
