"""The SDK's ids: sorted, unique, also over a clock that steps back and over a fork."""

from __future__ import annotations

import os

import pytest
from support.inspect import sequence_of, tag_of, use_sequence
from support.manual_clock import ManualClock

from tidewarden.client.ids import _PER_MS, Ids


def test_they_sort_as_they_were_made_whatever_the_clock_does() -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = [ids.make() for _ in range(1500)]
    clock.step_unix(5)
    made.append(ids.make())
    clock.step_unix(-60_000)
    made += [ids.make() for _ in range(3)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(one) for one in made} == {21}


def test_a_millisecond_that_is_full_lends_from_the_next() -> None:
    ids = Ids(ManualClock())
    before = ids.make()
    use_sequence(ids, _PER_MS - 1)
    assert ids.make() > before
    assert sequence_of(ids) == 0


def test_makers_and_forks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    one, other = Ids(clock), Ids(clock)
    first = one.make()
    assert first[:13] == other.make()[:13]
    assert tag_of(one) != tag_of(other)
    tag = tag_of(one)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert one.make()[13:] != tag
