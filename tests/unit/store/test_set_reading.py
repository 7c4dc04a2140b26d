"""What the answers of one group by the in-sync set say."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.store.durability.set_reading import (
    GroupReading,
    Primaryship,
    node_of,
    primaryship_of,
    read_group,
)

PRIMARY = Primaryship(7, "abc1", b"n.0.aa")


def info(*replicas: tuple[str, int], role: str = "master", run_id: str = "abc1") -> bytes:
    lines = ["# Server", "redis_version:7.2.4", f"run_id:{run_id}", "tcp_port:0", ""]
    lines += ["# Replication", f"role:{role}", f"connected_slaves:{len(replicas)}"]
    lines += [
        f"slave{i}:ip={member},port=6379,state=online,offset={offset},lag=0,type=replica"
        for i, (member, offset) in enumerate(replicas)
    ]
    lines += ["replicas_waiting_psync:0", "master_repl_offset:100"]
    return "\r\n".join(lines).encode() + b"\r\n"


def role(*replicas: tuple[str, int]) -> list[Any]:
    acks = [[name.encode(), b"6379", str(offset).encode()] for name, offset in replicas]
    return [b"master", 100, acks]


FOLLOWS = [b"slave", b"10.0.0.1", 6379, b"connected", 100]


def group(
    in_sync: str, *replicas: tuple[str, int], view: int = 7, member: bytes = b"n.0.aa"
) -> list[Any]:
    seen = [str(view).encode(), in_sync.encode(), member]
    return [[view, 3, b"?"], [b"master", 100, []], 2, role(*replicas), seen]


B, C = ("n1.bb", 100), ("n2.cc", 100)
ALL = "n.0.aa n1.bb n2.cc"


def test_it_is_complete_once_every_member_has_the_mark() -> None:
    assert read_group(group(ALL, B, ("n2.cc", 101)), PRIMARY) == GroupReading(True, [], 2)


def test_a_replica_that_joins_makes_no_other_server_of_a_primary() -> None:
    """The first that joins changes the replication id."""
    seen = [b"7", b"n.0.aa"]
    before, behind = (info() + b"master_replid:%b\r\n" % replid for replid in (b"aa", b"bb"))
    assert primaryship_of([before, seen]) == primaryship_of([behind, seen]) == PRIMARY
    assert primaryship_of([info(run_id="abc2"), seen]) != PRIMARY


def test_a_primary_alone_in_the_set_waits_for_nobody() -> None:
    assert read_group(group("n.0.aa"), PRIMARY) == GroupReading(True, [], 0)


@pytest.mark.parametrize(
    "replicas",
    [
        (B,),
        (B, ("n2.cc", 99)),
        (B, ("n2.dd", 100)),
        (B, ("n3.cc", 100)),
    ],
    ids=["is not attached", "is behind", "was started anew", "is another node"],
)
def test_one_that_has_not_the_mark_is_missing(replicas: tuple[tuple[str, int], ...]) -> None:
    found = read_group(group(ALL, *replicas), PRIMARY)
    assert (found.complete, found.missing) == (False, [b"n2.cc"])


def test_of_two_connections_of_a_member_the_one_that_is_further_counts() -> None:
    assert read_group(group("n.0.aa n1.bb", B, ("n1.bb", 0)), PRIMARY).complete
    assert read_group(group("n.0.aa n1.bb", ("n1.bb", 0), B), PRIMARY).complete


def test_a_learner_that_keeps_up_is_waited_for_besides_and_does_not_count() -> None:
    """WAIT counts it, so a WAIT for the set's number alone returns before the last of the set."""
    found = read_group(group("n.0.aa n1.bb", ("n1.bb", 9), C), PRIMARY)
    assert found == GroupReading(False, [b"n1.bb"], 2)
    assert read_group(group("n.0.aa n1.bb", B, ("n2.cc", 9)), PRIMARY) == GroupReading(True, [], 1)


@pytest.mark.parametrize("in_sync", ["", "n1.bb n2.cc", "n.0.ab n1.bb n2.cc"])
def test_a_set_without_the_primary_confirms_nothing(in_sync: str) -> None:
    found = read_group(group(in_sync, B, C), PRIMARY)
    assert (found.complete, found.too_few) == (False, True)


@pytest.mark.parametrize("told", [{"view": 8}, {"view": 6}, {"member": b"n.0.ab"}], ids=str)
def test_another_primaryship_confirms_nothing(told: dict[str, Any]) -> None:
    found = read_group(group(ALL, B, C, **told), PRIMARY)
    assert (found.complete, found.other) == (False, True)


@pytest.mark.parametrize("place", [1, 3], ids=["before the wait", "behind it"])
def test_who_follows_another_confirms_nothing(place: int) -> None:
    answers = group("n.0.aa", B, C)
    answers[place] = FOLLOWS
    found = read_group(answers, PRIMARY)
    assert (found.complete, found.other) == (False, True)


def test_a_store_that_nobody_has_opened_confirms_nothing() -> None:
    answers = group(ALL, B, C)
    answers[4] = [None, None, None]
    assert read_group(answers, PRIMARY).other


def test_who_is_primary() -> None:
    assert primaryship_of([info(), [b"7", b"n.0.aa"]]) == PRIMARY
    assert primaryship_of([info(role="slave"), [b"7", b"n.0.aa"]]) is None
    assert primaryship_of([info(), [None, None]]) is None
    assert node_of(b"n.0.aa") == "n.0"
