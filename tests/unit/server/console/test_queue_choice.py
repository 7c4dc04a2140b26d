"""Which queues have a history where there are many."""

from __future__ import annotations

from support.inspect import kept_of_queues

from tidewarden.config.rights import ALL, Rights
from tidewarden.server.console.queue_choice import QUEUES_MAX, TURNED, QueueChoice


async def test_where_there_are_few_all_have_one() -> None:
    subject = QueueChoice()
    subject.names(["b", "a", "_tokens:x"])
    assert sorted(subject.chosen(0.0)) == ["_tokens:x", "a", "b"]
    assert await subject.count(ALL) == 2
    assert await subject.count(Rights(("stats:a",))) == 1


def test_the_busy_stay_and_the_others_come_in_turn() -> None:
    names = [f"q{number:04}" for number in range(1000)]
    subject = QueueChoice()
    subject.names(names)
    busy = subject.chosen(0.0)[5]
    seen: set[str] = set()
    for turn in range(120):
        chosen = subject.chosen(60.0 * turn)
        assert len(chosen) == len(set(chosen)) <= QUEUES_MAX
        assert busy in chosen
        seen |= set(chosen)
        for name in chosen:
            subject.saw(name, 10.0 * turn if name == busy else 0.0)
        subject.names(names)
    assert seen == set(names)
    assert max(kept_of_queues(subject)) <= QUEUES_MAX + TURNED


def test_what_was_asked_for_stays_for_an_hour() -> None:
    names = [f"q{number:04}" for number in range(1000)]
    subject = QueueChoice()
    subject.names(names)
    wanted = next(name for name in reversed(names) if name not in subject.chosen(0.0))
    for name in [wanted, *names]:
        subject.ask(name, 0.0)
    for turn in range(1, 50):
        subject.names(names)
        assert wanted in subject.chosen(60.0 * turn)
    subject.chosen(3700.0)
    for _ in range(20):
        subject.names(names)
    assert kept_of_queues(subject)[2] == 0
    subject.names(["other"])
    assert subject.chosen(3700.0) == ["other"]


def test_the_others_come_in_turn_without_those_that_are_kept() -> None:
    subject = QueueChoice()
    subject.names(["a", "b", "_tokens:x"])
    assert subject.others(10) == []
    names = ["_tokens:x", *(f"q{number:04}" for number in range(1000))]
    subject.names(names)
    kept = set(subject.chosen(0.0))
    seen = [name for _ in range(20) for name in subject.others(100)]
    assert set(seen) == set(names) - kept - {"_tokens:x"}
    assert len(subject.others(100)) <= 100 + QUEUES_MAX
    assert [subject.is_other(name) for name in ("_tokens:x", seen[0], "none", min(kept))] == [
        False, True, False, False,
    ]  # fmt: skip
