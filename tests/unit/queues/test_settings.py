"""A queue's settings: every name, every bound, every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg
from tidewarden.queue.settings import CHOICES, LIMITS, SHARD_FIELDS, QueueSettings, changed

DEFAULTS = QueueSettings()


def granted(_: str) -> str:
    """Every durability can be had."""
    return ""


def no_fsync(durability: str) -> str:
    return "fsync needs a disk" if durability == "fsync" else ""


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_number_within_its_bounds(name: str) -> None:
    low, high = LIMITS[name]
    for value in (low, high, str(high)):
        assert getattr(changed(DEFAULTS, {name: value}, refusal=granted), name) == int(value)


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_number_that_is_not_allowed(name: str) -> None:
    low, high = LIMITS[name]
    for value in (
        low - 1,
        high + 1,
        "",
        "x",
        "1.5",
        1.5,
        "--1",
        "+1",
        " 1",
        None,
        True,
        b"1",
        [],
        "1e3",
        10**30,
        "9" * 5000,
    ):
        with pytest.raises(BadArg, match=f"{name} is .*; allowed is {low} to {high}"):
            changed(DEFAULTS, {name: value}, refusal=granted)


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_a_word_that_is_not_allowed(name: str) -> None:
    for value in ("", "EDF", "none", 1, None, []):
        with pytest.raises(BadArg, match=f"{name} is .*; allowed are"):
            changed(DEFAULTS, {name: value}, refusal=granted)


def test_words() -> None:
    assert changed(DEFAULTS, {"order": "edf"}, refusal=granted).order == "edf"
    assert changed(DEFAULTS, {"durability": "fsync"}, refusal=granted).durability == "fsync"
    assert changed(DEFAULTS, {"durability": "quorum"}, refusal=no_fsync).durability == "quorum"
    with pytest.raises(BadArg, match="fsync needs a disk"):
        changed(DEFAULTS, {"durability": "fsync"}, refusal=no_fsync)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadArg, match=r"no queue setting 'Shards'; there are shards, lease_ms"):
        changed(DEFAULTS, {"Shards": 2}, refusal=granted)


def test_one_bad_value_changes_nothing_and_the_rest_stays() -> None:
    with pytest.raises(BadArg):
        changed(DEFAULTS, {"lease_ms": 5, "urgent_ms": -1}, refusal=granted)
    new = changed(DEFAULTS, {"lease_ms": 5, "late_share": "0"}, refusal=granted)
    assert (new.lease_ms, new.late_share, new.urgent_ms, new.shards) == (5, 0, 60_000, 1)


def test_what_a_shard_is_told() -> None:
    fields: list[Any] = QueueSettings(order="edf", lease_ms=7).shard_fields()
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    assert tuple(pairs) == SHARD_FIELDS
    assert (pairs["order"], pairs["lease_ms"]) == ("edf", 7)
    fields = QueueSettings(capacity=10, shards=4).shard_fields()
    assert fields[fields.index("capacity") + 1] == 3, "no less in all than was asked for"
    assert set(SHARD_FIELDS) == {*LIMITS, *CHOICES, "lane_rate", "version", "tube"} - {
        "shards",
        "durability",
    }


def test_each_setting_but_those_with_a_check_of_their_own_has_limits_or_choices() -> None:
    assert {*LIMITS, *CHOICES} == {*QueueSettings().shown()} - {"lane_rate", "strategy"}
    assert all(low <= getattr(DEFAULTS, name) <= high for name, (low, high) in LIMITS.items())
    assert all(getattr(DEFAULTS, name) in allowed for name, allowed in CHOICES.items())
