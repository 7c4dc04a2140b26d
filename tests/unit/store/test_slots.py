"""Slots: where a key lies, what servers say, and whose word counts."""

from __future__ import annotations

import pytest

from tidewarden.store.redis_cluster.slots import (
    Claim,
    SlotMap,
    SlotsReply,
    read_slots,
    slot_of,
    whom_to_ask,
)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 12739), ("{user1000}.following", 3443), ("{user1000}.followers", 3443), ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015), ("foo{bar}{zap}", 5061), ("", 0),
    ],
)  # fmt: skip
def test_the_slot_of_a_key_as_the_specification_has_it(key: str, slot: int) -> None:
    assert slot_of(key) == slot_of(key.encode()) == slot


def test_all_keys_of_a_shard_lie_in_one_slot_and_shards_are_spread() -> None:
    for name in ("", "~", ":shard", ":ready:50", ":wake:n0.1"):
        assert slot_of("{tw:q:3}" + name) == slot_of("{tw:q:3}")
    assert len({slot_of(f"{{tw:q:{i}}}") // 4096 for i in range(16)}) == 4


def test_what_a_server_says() -> None:
    slots = [
        [0, 5, [b"10.0.0.1", 7000, b"aa", []], [b"10.0.0.4", 7000, b"dd", []]],
        [6, 9, [b"", 7001, b"bb"]],
        [10, 16383, [b"fe80::1", 7002, b"cc"]],
    ]
    nodes = (
        b"aa 10.0.0.1:7000@17000 master - 0 1 7 connected 0-5\n"
        b"bb :7001@17001 myself,master - 0 0 8 connected 6-9\n"
        b"dd 10.0.0.4:7000@17000 slave aa 0 1 7 connected\n"
    )
    answer = read_slots(slots, nodes, "seed:7001")
    assert answer.claims == (
        Claim(0, 5, "10.0.0.1:7000", 7, "aa"),
        Claim(6, 9, "seed:7001", 8, "bb"),
        Claim(10, 16383, "[fe80::1]:7002", 0, "cc"),
    )
    assert answer.members == {"aa", "bb", "dd"}
    assert answer.replicas == ("10.0.0.4:7000",)


def said(*claims: tuple[int, int, str, int]) -> SlotsReply:
    return SlotsReply(tuple(Claim(*claim) for claim in claims))


def test_the_word_of_a_server_of_another_cluster_does_not_count() -> None:
    """
    It has left, was made a cluster of its own, and has had more elections than ours: so its epoch
    is the greater one.
    """
    known = SlotMap()
    whole = (Claim(0, 9, "a:1", 1, "aa"), Claim(10, 16383, "b:1", 2, "bb"))
    assert not known.is_foreign(SlotsReply(whole, members=frozenset(("aa", "bb")))), (
        "nothing is known yet"
    )
    known.merge("a:1", SlotsReply(whole, members=frozenset(("aa", "bb"))))
    assert known.is_foreign(
        SlotsReply((Claim(0, 16383, "c:1", 30, "cc"),), members=frozenset(("cc",)))
    )
    assert known.is_foreign(SlotsReply((), members=frozenset(("cc",)))), "one that has no slots"
    assert not known.is_foreign(
        SlotsReply((Claim(0, 16383, "c:1", 30, "cc"),), members=frozenset(("cc", "bb")))
    )
    # All fail, one after the other, and each is forgotten when its replica has taken over.
    known.merge(
        "d:1", SlotsReply((Claim(0, 9, "d:1", 3, "dd"),), members=frozenset(("aa", "bb", "dd")))
    )
    known.merge(
        "e:1",
        SlotsReply((Claim(10, 16383, "e:1", 4, "ee"),), members=frozenset(("bb", "dd", "ee"))),
    )
    assert not known.is_foreign(SlotsReply((), members=frozenset(("dd", "ee"))))
    assert known.is_foreign(SlotsReply((), members=frozenset(("aa", "bb"))))


def test_a_server_that_is_behind_takes_nothing_back() -> None:
    known = SlotMap()
    assert known.merge("a", said((0, 9, "a", 1), (10, 16383, "b", 2)))
    assert known.uncovered() == 0
    assert known.merge("c", said((0, 9, "c", 3), (10, 16383, "b", 2))), "a's replica was promoted"
    assert not known.merge("b", said((0, 9, "a", 1), (10, 16383, "b", 2)))
    assert known.owner(5) == "c"
    assert known.primaries() == ("c", "b")
    assert known.merge(
        "b", said((0, 9, "c", 3), (10, 14, "b", 2), (15, 15, "c", 4), (16, 16383, "b", 2))
    )
    assert known.merge("b", said((0, 9, "c", 3), (10, 16383, "b", 5))), "the slot went back"
    assert known.owner(15) == "b"


def test_a_redirection_counts_against_who_has_not_heard_of_it() -> None:
    known = SlotMap()
    first = said((0, 16383, "a", 1))
    known.merge("a", first)
    turn = known.turn(7)
    assert known.moved(7, "b")
    assert not known.moved(7, "b")
    assert known.turn(7) == turn + 1
    assert known.turn(8) == turn
    assert (known.owner(7), known.owner(8)) == ("b", "a")
    assert not known.merge("c", first), "this one is behind"
    known.moved(7, "c")
    assert not known.merge("d", first), "however often it was moved"
    assert known.merge("b", said((0, 6, "a", 1), (7, 7, "e", 2), (8, 16383, "a", 1))), (
        "a failover since"
    )
    assert known.owner(7) == "e"


def test_a_redirection_that_was_wrong_does_not_count_for_ever() -> None:
    known = SlotMap()
    first = said((0, 16383, "a", 1))
    known.merge("a", first)
    known.moved(7, "dead")
    assert not known.merge("a", first)
    known.settle()
    assert known.merge("a", first), "the same answer as before"
    assert known.owner(7) == "a"


def test_whom_to_ask() -> None:
    assert whom_to_ask(["s", "t"], ["p", "s", "q", "r"], 4) == ["s", "t", "p", "q"]
    assert whom_to_ask(["s", "s"], [], 4) == ["s"]


def test_the_primaries_are_told_without_counting_all_slots_each_time() -> None:
    slots = SlotMap()
    slots.merge("a:1", SlotsReply((Claim(0, 8191, "a:1", 1), Claim(8192, 16383, "b:1", 2))))
    assert slots.primaries() == ("a:1", "b:1")
    assert slots.primaries() is slots.primaries(), "it is asked for at every read of a token"
    slots.moved(16383, "c:1")
    assert slots.primaries() == ("a:1", "b:1", "c:1")
