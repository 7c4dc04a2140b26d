"""The guarantee of space-saving, whatever is added and merged in which order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidewarden.server.traffic.space_saving import SpaceSaving

MEASURES, COUNTERS = 2, 3

Truth = list[Counter[int]]
Batch = list[tuple[int, tuple[int, int]]]
batches = st.lists(
    st.tuples(st.integers(0, 30), st.tuples(st.integers(0, 9), st.sampled_from((0, 0, 1, 500)))),
    max_size=40,
)


def counted(batch: Batch) -> tuple[SpaceSaving[int], Truth]:
    table: SpaceSaving[int] = SpaceSaving(MEASURES, COUNTERS)
    truth: Truth = [Counter() for _ in range(MEASURES)]
    for key, sums in batch:
        table.add(key, sums)
        for measure, number in enumerate(sums):
            truth[measure][key] += number
    return table, truth


def check(table: SpaceSaving[int], truth: Truth) -> None:
    assert len(table) <= 2 * MEASURES * COUNTERS
    entries = {key: (sums, errors) for key, sums, errors in table.entries()}
    for measure, exact in enumerate(truth):
        total = sum(exact.values())
        assert table.totals[measure] == total
        assert table.floors[measure] * COUNTERS <= total
        for key, (sums, errors) in entries.items():
            assert sums[measure] <= exact[key] <= sums[measure] + errors[measure]
            assert errors[measure] * COUNTERS <= total
        for key, number in exact.items():
            if key not in entries:
                assert number <= table.floors[measure]
            if number * COUNTERS > total:
                assert key in entries


@given(batches)
def test_what_is_added_is_within_its_error_and_the_frequent_are_in(batch: Batch) -> None:
    check(*counted(batch))


@given(st.lists(batches, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_merging_in_any_order_keeps_the_guarantee(found: list[Batch], order: object) -> None:
    parts = [counted(batch) for batch in found]
    while len(parts) > 1:
        first = parts.pop(order.randrange(len(parts)))  # type: ignore[attr-defined]
        second = parts.pop(order.randrange(len(parts)))  # type: ignore[attr-defined]
        first[0].merge(second[0])
        parts.append((first[0], [a + b for a, b in zip(first[1], second[1], strict=True)]))
        check(*parts[-1])


@given(batches, batches)
def test_what_comes_after_a_merge_is_counted_on(before: Batch, after: Batch) -> None:
    table, truth = counted(before)
    other, more = counted(before[::-1])
    table.merge(other)
    for key, sums in after:
        table.add(key, sums)
        for measure, number in enumerate(sums):
            truth[measure][key] += number
    check(table, [a + b for a, b in zip(truth, more, strict=True)])


@given(batches)
def test_trimming_keeps_the_guarantee_in_half_the_room(batch: Batch) -> None:
    table, truth = counted(batch)
    table.trim()
    assert len(table) <= MEASURES * COUNTERS
    check(table, truth)


def test_few_keys_are_counted_exactly() -> None:
    table, truth = counted([(key % 12, (key, 1)) for key in range(500)])
    assert {key: tuple(sums) for key, sums, _ in table.entries()} == {
        key: (truth[0][key], truth[1][key]) for key in range(12)
    }
    assert table.floors == [0, 0]


def test_a_million_names_do_not_hide_the_one_that_is_sent_often() -> None:
    table: SpaceSaving[str] = SpaceSaving(1, 128)
    for number in range(20_000):
        table.add(f"q{number}", (1,))
        if number % 50 == 0:
            table.add("mails", (1,))
    assert len(table) <= 256
    found = {key: (sums[0], errors[0]) for key, sums, errors in table.entries()}
    count, error = found["mails"]
    assert count <= 400 <= count + error
    assert error <= 20_400 / 128
