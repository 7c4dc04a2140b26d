"""A set of names in little memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tidewarden.cli.token.name_set import PARTS, SLOTS, NameSet


def test_it_knows_what_came_before() -> None:
    seen, known, dice = NameSet(), set[str](), random.Random(5)
    for _ in range(20_000):
        name = f"shop/user-{dice.randrange(12_000)}"
        assert seen.add(name) == (name not in known)
        known.add(name)
    assert len(seen) == len(known)


@pytest.mark.thorough
def test_a_name_takes_a_third_of_what_it_takes_in_a_set() -> None:
    names = PARTS * SLOTS * 4  # on average; no part is at its limit
    tracemalloc.start()
    try:
        seen = NameSet()
        for number in range(names):
            seen.add(f"shop/user-{number:09d}")
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(seen) == names
    assert size / names < 30


def test_the_mark_of_a_free_slot_is_no_names() -> None:
    class Odd(str):
        def __hash__(self) -> int:
            return 0

    seen = NameSet()
    assert [seen.add(Odd("a")), seen.add(Odd("a"))] == [True, False]
