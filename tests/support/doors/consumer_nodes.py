"""RESP doors of several nodes on one store, each of which knows the consumers of all."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from support.doors import doubles
from support.tokens.peer_doors import door as peer_door

from tidewarden.clock import SystemClock
from tidewarden.config.load import User
from tidewarden.server.consumers.cluster_consumers import ClusterConsumers, mac_of
from tidewarden.server.consumers.node_consumers import NodeConsumers
from tidewarden.server.consumers.process_consumers import ProcessConsumers


@dataclass
class ConsumerNode:
    """A node of these: its queues, its door, and what it knows of consumers."""

    queues: Any
    door: doubles.Door
    consumers: ClusterConsumers


@contextlib.asynccontextmanager
async def consumer_nodes(
    made: Sequence[Any], users: tuple[User, ...] = (), away: dict[str, str] | None = None
) -> AsyncIterator[list[ConsumerNode]]:
    """Doors of these nodes, ``n0`` and on; ``away``: addresses at which no node answers."""
    async with contextlib.AsyncExitStack() as stack:
        addresses: dict[str, str] = {}
        found = []
        for number, one in enumerate(made):
            name, clock = f"n{number}", SystemClock()
            own = NodeConsumers(ProcessConsumers(name, one.queues, clock))
            consumers = ClusterConsumers(name, own, one.queues, mac_of("x"), lambda: addresses)
            stack.push_async_callback(consumers.close)
            addresses[name] = await stack.enter_async_context(peer_door(consumers.answer_peer))
            door = doubles.Door(queues=one.queues, users=users, consumers=consumers)
            await stack.enter_async_context(door)
            door.provide(locks=one.queues.locks)
            found.append(ConsumerNode(one.queues, door, consumers))
        addresses.update(away or {})
        yield found
