"""Histograms: their buckets, labels, and how those of several processes are added up."""

from __future__ import annotations

import msgspec
import pytest

from tidewarden import histograms
from tidewarden.histograms import KINDS, Family, Histogram, Kind, series_of
from tidewarden.server.stats_merge import add_up, lasting

KIND = Kind("x_seconds", "X", ("verb",), (0.1, 1.0))


def test_a_bound_belongs_to_its_bucket_and_the_last_one_has_none() -> None:
    found = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.11, 1.0, 1.01, 1e9):
        found.observe(seconds)
    assert found.counts == [2, 2, 2]
    assert found.sum == pytest.approx(1e9 + 2.22)


def test_processes_are_added_up_and_one_that_ended_still_counts() -> None:
    families = Family(KIND), Family(KIND)
    families[0].of("Q.PUT").observe(0.5)
    families[1].of("Q.PUT").observe(2.5)
    families[1].of("Q.ACK").observe(0.01)
    families[1].of("PING")  # never asked for: it has no series
    here, there = ({"histograms": family.stats(), "waiting": 1} for family in families)
    there = lasting(msgspec.json.decode(msgspec.json.encode(there)))
    assert set(there) == {"histograms"}
    both = add_up(here, there)["histograms"]
    assert sorted(series_of(both["x_seconds"], KIND.bounds)) == [
        (("Q.ACK",), [1, 0, 0], 0.01),
        (("Q.PUT",), [0, 1, 1], 3.0),
    ]


def test_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "SERIES_MAX", 2)
    family = Family(KIND)
    for name in "abcdab":
        family.of(name).observe(1.0)
    shown = dict.fromkeys(family.stats()["x_seconds"])
    assert list(shown) == ["a", "b", "(others)"]
    told = {
        labels: counts for labels, counts, _ in series_of(family.stats()["x_seconds"], (0.1, 1))
    }
    assert told[("(others)",)] == [0, 2, 0]


def test_every_kind_counts_seconds_in_rising_buckets() -> None:
    for name, kind in KINDS.items():
        assert name.endswith("_seconds")
        assert name == kind.name
        assert list(kind.bounds) == sorted(set(kind.bounds))
        assert kind.help
        assert not kind.help.endswith(".")
