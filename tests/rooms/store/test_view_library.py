"""The functions that write into a store's data who its primary is, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from support.store.servers import StoreServer

from tidewarden.store.durability.view_library import (
    LIBRARY,
    mark_command,
    open_command,
    primary_key,
    view_key,
)

C = "view-library"


@pytest.fixture
def client(valkey: StoreServer) -> Iterator[redis.Redis]:
    made = redis.Redis(unix_socket_path=valkey.path, decode_responses=True)
    made.function_load(LIBRARY, replace=True)
    yield made
    made.config_set("maxmemory", 0)
    made.function_delete("tidewarden_view")
    made.close()


def opened(client: redis.Redis, view: int, stamp: int, in_sync: str = "a.1 b.2") -> object:
    return client.execute_command(*open_command(C, view, stamp, in_sync, "a.1"))


def test_a_mark_counts_and_says_the_view_and_the_set(client: redis.Redis) -> None:
    assert opened(client, 3, 1) == 3
    assert client.execute_command(*mark_command(C)) == [3, 1, "a.1 b.2"]
    assert client.execute_command(*mark_command(C)) == [3, 2, "a.1 b.2"]
    opened(client, 3, 2, "")
    assert client.execute_command(*mark_command(C)) == [3, 3, ""]
    assert client.get(view_key(C)) == "3"


@pytest.mark.parametrize(("view", "stamp"), [(3, 5), (3, 4), (2, 9)])
def test_what_comes_late_is_refused(client: redis.Redis, view: int, stamp: int) -> None:
    opened(client, 3, 5)
    before = client.hgetall(primary_key(C))
    with pytest.raises(redis.ResponseError, match="STALE the data are of view 3, stamp 5"):
        opened(client, view, stamp, "c.3")
    assert client.hgetall(primary_key(C)) == before


def test_a_greater_stamp_or_view_is_taken_and_the_founding_stays(client: redis.Redis) -> None:
    opened(client, 3, 5)
    opened(client, 3, 6, "a.1")
    client.execute_command(*open_command(C, 4, 1, "b.2", "b.2"))
    assert client.hgetall(primary_key(C)) == {
        "view": "4",
        "stamp": "1",
        "set": "b.2",
        "node": "b.2",
        "founding": "a.1",
    }


def test_the_view_of_a_store_that_was_alone_counts(client: redis.Redis) -> None:
    client.set(view_key(C), 7)
    with pytest.raises(redis.ResponseError, match="STALE"):
        opened(client, 7, 1)
    assert opened(client, 8, 1) == 8
    assert client.get(view_key(C)) == "8"


def test_a_mark_of_data_that_were_never_opened_confirms_nothing(client: redis.Redis) -> None:
    assert client.execute_command(*mark_command(C)) == [0, 1, ""]


def test_a_full_store_takes_both(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set(view_key(C), "x")
    opened(client, 9, 1)
    assert client.execute_command(*mark_command(C)) == [9, 1, "a.1 b.2"]
