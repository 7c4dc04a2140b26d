"""Three nodes as ``tidewarden up`` runs them, and what is seen of them from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from benchmarks.connections import Broken
from benchmarks.up import running_up

NODES = 3
CALM_S = 60.0


def client_of(port: int, secret: str, wait_s: float | None = None) -> redis.asyncio.Redis:
    """One connection to one node."""
    return redis.asyncio.Redis(
        port=port,
        username="admin",
        password=secret,
        single_connection_client=True,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=wait_s,
        socket_connect_timeout=2,
        protocol=3,
    )


@dataclass
class Cluster:
    """The nodes of a running ``tidewarden up``."""

    ports: list[int]
    secret: str
    clients: dict[int, redis.asyncio.Redis] = field(default_factory=dict)

    async def status(self, port: int) -> dict[str, Any] | None:
        """R.STATUS of a node, None while it does not answer."""
        client = self.clients.get(port) or self.clients.setdefault(
            port, client_of(port, self.secret, 1.0)
        )
        try:
            answer = await client.execute_command("R.STATUS")
        except (redis.RedisError, OSError):
            self.clients.pop(port, None)
            with contextlib.suppress(redis.RedisError, OSError):
                await client.aclose()
            return None
        return {
            key.decode(): value.decode() if isinstance(value, bytes) else value
            for key, value in answer.items()
        }

    async def leader(self, ports: list[int], above: int = 0) -> tuple[int, int] | None:
        """Port and epoch of the node that sweeps under an epoch above ``above``."""
        for port, status in zip(ports, await asyncio.gather(*map(self.status, ports)), strict=True):
            if (
                status
                and status["sweeping"]
                and status["role"] == "leader"
                and int(status["epoch"]) > above
            ):
                return port, int(status["epoch"])
        return None

    async def calm(self) -> tuple[int, int]:
        """
        Wait until every node serves and knows one leader, which sweeps; its port and epoch.

        Raises: Broken: not within a minute.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALM_S):
                while True:
                    seen = await asyncio.gather(*map(self.status, self.ports))
                    found = await self.leader(self.ports)
                    if (
                        found
                        and all(seen)
                        and len({status["leader"] for status in seen if status}) == 1
                    ):
                        return found
                    await asyncio.sleep(0.1)
        raise Broken(f"the nodes did not come to rest within {CALM_S:g} s")

    async def close(self) -> None:
        for client in self.clients.values():
            with contextlib.suppress(redis.RedisError, OSError):
                await client.aclose()


@contextlib.asynccontextmanager
async def cluster_up(folder: Path, *words: str) -> AsyncIterator[Cluster]:
    """
    ``tidewarden up`` with three nodes, ready.

    ``words``: more for its command line.
    """
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}
    with running_up(folder, NODES, *words, environ=environ) as up:
        cluster = Cluster(up.ports, up.secret)
        try:
            yield cluster
        finally:
            await cluster.close()
