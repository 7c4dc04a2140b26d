"""
What the library keeps of a shard's record is never taken for what is stored: whoever wrote it,
whatever became of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from support.inspect import line_of
from support.queues.desk import queue_scripts
from support.store.servers import StoreServer

from tidewarden.errors import BadArg, Error
from tidewarden.queue.partitioning import prefix_of


@pytest.fixture
def shard(desk: Any) -> Any:
    """A desk on an embedded store, whose library keeps the record of the shard."""
    if not desk.views:
        pytest.skip("nothing is kept by EVALSHA")
    desk.put("a")
    desk.configure(lease_ms=1000)
    return desk


def lease_ms(desk: Any) -> int:
    """As the script takes it from the record."""
    row = desk.take_one()
    desk.end(row, "release")
    return int(row.lease_end_ms) - int(desk.now)


def by_evalsha(desk: Any) -> Any:
    other = copy.copy(desk)
    other.scripts = queue_scripts()
    other.views = False
    return other


def test_what_another_way_has_written_counts_at_once(shard: Any) -> None:
    other = by_evalsha(shard)
    for n in range(1, 20):
        (other if n % 2 else shard).configure(lease_ms=1000 * n)
        assert lease_ms(shard) == lease_ms(other) == 1000 * n
    shard.audit()


def restored(desk: Any, then: Callable[[], Any]) -> None:
    """The store as it was before ``then``, in the same server."""
    dumps = {key: desk.client.dump(key) for key in desk.client.keys("*")}
    then()
    desk.client.flushall()
    for key, dump in dumps.items():
        desk.client.restore(key, 0, dump)


def test_a_store_that_was_emptied_or_restored(shard: Any) -> None:
    """Each history counts its writes anew, and yet no two have a `seq` in common."""
    for n in range(1, 10):
        restored(shard, lambda n=n: [shard.configure(lease_ms=9000 + n) for _ in range(n)])
        assert lease_ms(shard) == 1000
        shard.client.flushdb()
        shard.set_view(n)
        shard.put("a")
        assert lease_ms(shard) == 30_000
        shard.configure(lease_ms=1000)
    shard.audit()


def test_a_history_that_an_older_version_has_written(shard: Any) -> None:
    """
    It counts its writes from 1: in an upgrade, two histories of a store that is emptied have the
    same numbers.
    """
    record = f"{shard.prefix}:shard"
    for n in range(1, 10):
        shard.client.flushdb()
        shard.set_view(n)
        shard.client.hset(record, mapping={"seq": 2, "lease_ms": 1000 * n})
        shard.peek("a")
        shard.client.flushdb()
        shard.set_view(n)
        shard.client.hset(record, mapping={"seq": 2, "lease_ms": 2000 * n})
        shard.put("a")
        assert lease_ms(shard) == 2000 * n
    shard.audit()


def test_a_script_that_is_refused_on_its_way_leaves_nothing(shard: Any) -> None:
    before = shard.digest()
    # a step of the clock, which open() puts into the record before the verb refuses
    shard.stamp = "~0~1~-50000"
    with pytest.raises(BadArg):
        shard.run("queue.take", 200, 0, 0, 0, "")
    shard.stamp = ""
    assert shard.digest() == before
    shard.put("b")
    assert shard.record("steps") == ""
    with pytest.raises(Error, match="no such setting"):
        shard.configure(lease_ms=5, nonsense=1)
    assert lease_ms(shard) == 1000


def test_what_a_look_found_is_not_kept(shard: Any) -> None:
    shard.client.hset(f"{shard.prefix}:shard", "stored", 7)
    shard.put("b")
    shard.run("queue.check_record", 0)
    shard.run("queue.check", "tasks", "0", 100, 0)
    shard.put("c")
    assert shard.record("stored") == "9"
    shard.run("queue.check_record", 1)
    shard.audit()


@pytest.mark.thorough
async def test_what_somebody_writes_by_hand_counts_within_a_second(
    shard: Any, eventually: Any
) -> None:
    shard.client.execute_command(
        "HSET", f"{shard.prefix}:shard", "lease_ms", 7000, "seq", shard.record("seq")
    )
    lease_ms(shard)
    raw = f"{shard.prefix}:shard"
    line_of(shard).send_command("HSET", raw, "lease_ms", 8000)
    line_of(shard).read_response()
    await eventually(lambda: lease_ms(shard) == 8000)


@pytest.mark.thorough
def test_records_of_many_shards_are_forgotten_together(
    shard: Any, valkey_server: StoreServer
) -> None:
    """Some thousand are kept, of some kilobytes each, however many shards there are."""

    def kept_bytes() -> int:
        return int(valkey_server.client.info("memory")["used_memory_vm_functions"])

    most, start = 0, kept_bytes()
    for n in range(4000):
        shard.keys[0] = prefix_of("tw", "many", n)
        shard.put("a")
        if n % 100 == 0:
            most = max(most, kept_bytes() - start)
    assert most < 12_000_000
    valkey_server.client.flushdb()
