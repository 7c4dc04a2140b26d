"""A node that starts waits until the primary takes writes, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
from support.store.servers import StoreServer

from tidewarden.clock import SystemClock
from tidewarden.errors import StoreDown
from tidewarden.node.check_writable import check_writable
from tidewarden.store.durability.view_library import LIBRARY, open_command, primary_key

C = "first-write"


@pytest.fixture
def client(valkey: StoreServer) -> Iterator[redis.Redis]:
    made = redis.Redis(unix_socket_path=valkey.path, decode_responses=True)
    made.function_load(LIBRARY, replace=True)
    made.execute_command(*open_command(C, 3, 1, "a.1 b.2", "a.1"))
    yield made
    made.config_set("min-replicas-to-write", 0)
    made.function_delete("tidewarden_view")
    made.close()


async def test_a_primary_without_copies_is_waited_for(
    client: redis.Redis, valkey: StoreServer
) -> None:
    """Whose store is the copy that it lacks ends with a node that does not wait."""
    url = f"unix://{valkey.path}"
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(StoreDown, match="NOREPLICAS"):
        await check_writable(url, C, "test", SystemClock())
    client.config_set("min-replicas-to-write", 0)
    await check_writable(url, C, "test", SystemClock())
    assert client.hget(primary_key(C), "seq") == "1"


@pytest.mark.thorough
async def test_a_primary_that_is_paused_is_waited_for(
    client: redis.Redis, valkey: StoreServer
) -> None:
    """It is about to hand over."""
    client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    url = f"unix://{valkey.path}"
    starting = asyncio.ensure_future(check_writable(url, C, "test", SystemClock()))
    with pytest.raises(StoreDown, match="has not taken a write"):
        await starting
    client.execute_command("CLIENT", "UNPAUSE")
    await check_writable(url, C, "test", SystemClock())
