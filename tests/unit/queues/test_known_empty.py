"""When a shard is passed by, and when no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidewarden.queue.shards.known_empty import BARE_S, KnownEmpty


@pytest.fixture
def shard() -> Any:
    made = SimpleNamespace(wakes=3, named="n0.1", now=10.0, due=[])
    made.holder = lambda: made.named
    made.time = lambda: made.now
    made.due_by = lambda at: any(event <= at for event in made.due)
    return made


def test_nobody_has_asked_yet(shard: Any) -> None:
    assert not KnownEmpty().holds(shard)


def test_it_holds_until_its_time_is_over(shard: Any) -> None:
    bare = KnownEmpty()
    bare.found(shard, 3, told=True)
    assert bare.holds(shard)
    shard.now += BARE_S
    assert not bare.holds(shard)


def test_a_wake_up_ends_it_and_one_on_the_way_prevents_it(shard: Any) -> None:
    bare = KnownEmpty()
    bare.found(shard, 2, told=True)
    assert not bare.holds(shard), "it was woken after that take was sent"
    bare.found(shard, 3, told=True)
    shard.wakes = 4
    assert not bare.holds(shard)


def test_what_falls_due_ends_it(shard: Any) -> None:
    bare = KnownEmpty()
    bare.found(shard, 3, told=True)
    shard.due = [12.0]
    assert bare.holds(shard)
    shard.now = 12.0
    assert not bare.holds(shard)


def test_a_node_that_registers_anew_has_to_ask(shard: Any) -> None:
    bare = KnownEmpty()
    bare.found(shard, 3, told=True)
    shard.named = "n0.2"
    assert not bare.holds(shard)


def test_of_what_nobody_tells_it_is_asked_last_alone(shard: Any) -> None:
    bare = KnownEmpty()
    assert not bare.dry(shard)
    bare.found(shard, 3, told=False)
    assert bare.dry(shard)
    assert not bare.holds(shard)
    shard.wakes = 4
    assert not bare.dry(shard)


def test_what_is_known_is_not_forgotten_for_less(shard: Any) -> None:
    bare = KnownEmpty()
    bare.found(shard, 3, told=True)
    bare.found(shard, 3, told=False)
    assert bare.holds(shard)
