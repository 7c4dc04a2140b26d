"""Schedules on a real store: fixtures of those who test them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis
from support.queues.desk import loading

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.queue.queues import Queues
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec
from tidewarden.store import Scripts, StoreConnection

LEADER = "n0.1"


CLUSTER = "tw"


class HookedQueues(Queues):
    """Real queues. ``hooks`` run once each before a script of that name."""

    hooks: dict[str, Callable[[], Awaitable[object]]]

    def hook(self) -> None:
        """Run the hooks from now on."""
        self.hooks = {}
        run = self.scripts.run

        async def hooked(name: str, queue: str, shard: int, args: Any, *, now_ms: int = 0) -> Any:
            hook = self.hooks.pop(name, None)
            if hook is not None:
                await hook()
            return await run(name, queue, shard, args, now_ms=now_ms)

        self.scripts.run = hooked


@pytest.fixture
async def queues(valkey: Any, queue_scripts: Scripts) -> AsyncIterator[HookedQueues]:
    config = load(None, {}, {"cluster.name": CLUSTER})
    scripts = queue_scripts
    link = StoreConnection(valkey.url, "test", SystemClock(), on_up=loading(valkey, scripts))
    await link.start(wait_s=60)
    queues = HookedQueues(config, link, scripts, SystemClock(), views=False, system_queues={})
    queues.hook()
    queues.catalog.holder = LEADER
    await queues.admin.configure("wide", {"shards": 16})
    yield queues
    await link.stop()


@pytest.fixture
def raw(valkey: Any) -> Any:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        yield client


@pytest.fixture
def schedules(queues: HookedQueues) -> Schedules:
    return Schedules(queues)


def prefix(queue: str = "jobs", shard: int = 0) -> str:
    return f"{{{CLUSTER}:{queue}:{shard}}}"


def tasks(raw: Any, queue: str = "jobs", shard: int = 0) -> list[str]:
    return sorted(name.decode() for name in raw.hkeys(f"{prefix(queue, shard)}:tasks"))


async def put_every(
    schedules: Schedules, name: str = "tick", every_ms: int = 1_000, **options: Any
) -> int:
    return await schedules.put(
        name, Spec.every(every_ms, options.pop("catchup", "one")), "jobs", TaskSpec(b"x", **options)
    )
