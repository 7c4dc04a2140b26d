"""Where an id lies: in the shard that it carries, else in that of its hash."""

from __future__ import annotations

import zlib

import pytest

from tidewarden.queue.placing import carried, carry, shard_of


@pytest.mark.parametrize("shard", [0, 1, 9, 10, 255])
def test_a_carried_shard_is_found(shard: int) -> None:
    task_id = carry("order-17", shard)
    assert carried(task_id, 256) == shard
    assert shard_of(task_id, 256) == shard
    assert shard_of(carry("a~1", shard), 256) == shard, "the last mark counts"


@pytest.mark.parametrize(
    "task_id", ["order", "a~", "~", "a~01", "a~00", "a~4", "a~256", "a~1000", "a~-1", "a~1 ", "a~²", "a~٣"]
)
def test_an_id_that_names_no_shard_of_the_queue_lies_by_its_hash(task_id: str) -> None:
    assert carried(task_id, 4) is None
    assert shard_of(task_id, 4) == zlib.crc32(task_id.encode()) % 4


def test_a_queue_of_one_shard_has_every_id() -> None:
    assert shard_of("a~3", 1) == shard_of("a", 1) == shard_of("a~0", 1) == 0
