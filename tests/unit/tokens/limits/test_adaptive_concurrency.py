"""
How many refreshers a node has where nobody set the number: a provider played in steps of a tenth of
a second.
"""

from __future__ import annotations

from collections.abc import Callable

from tidewarden.tokens.limits.adaptive_concurrency import AdaptiveConcurrency, late

STEP_S = 0.1
Latency = Callable[[int], float]
"""Seconds that a request takes, by how many are under way."""


class Play:
    """
    Accounts that fall due at ``rate`` a second, and are late once they have waited for ten seconds.
    """

    def __init__(self, latency: Latency, waiting: float = 0.0) -> None:
        self.concurrency = AdaptiveConcurrency(16, 256)
        self.latency = latency
        self.now = 1.0
        self.waiting = waiting
        self.done = 0.0
        self.well = True

    def run(self, seconds: float, rate: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.waiting += rate * STEP_S
            under_way = min(self.concurrency.size, int(self.waiting) + 1)
            if under_way == self.concurrency.size:
                self.concurrency.full()
            self.done += min(self.waiting, under_way / self.latency(under_way) * STEP_S)
            self.waiting -= min(self.waiting, under_way / self.latency(under_way) * STEP_S)
            while self.done >= 1:
                self.done -= 1
                self.concurrency.began(late=self.waiting > 10 * rate)
                self.concurrency.ended(well=self.well, now=self.now)


def test_few_accounts_need_no_more_than_there_are() -> None:
    play = Play(lambda _: 0.2)
    play.run(60, 50)
    assert play.concurrency.size == 16


def test_it_grows_to_what_is_needed_and_stays_there() -> None:
    """100 a second of 2 s each are 200 under way: with 16 all would be too late for ever."""
    play = Play(lambda _: 2.0)
    play.run(300, 100)
    assert play.waiting < 1500
    assert 190 <= play.concurrency.size <= 256
    play.run(300, 5)
    assert play.concurrency.size == 16


def test_a_crowd_that_is_late_is_served_by_all_that_may_be() -> None:
    play = Play(lambda _: 0.2, waiting=20_000)
    play.run(25, 1)
    assert play.concurrency.size == 256
    assert play.waiting < 2000


def test_a_rate_that_comes_and_goes_by_itself_does_not_keep_it_small() -> None:
    """Every other second the machine is busy with something else."""
    play = Play(lambda _: 0.2 if int(play.now) % 2 else 0.36, waiting=100_000)
    play.run(60, 1)
    assert play.concurrency.size == 256


def test_more_are_not_sent_where_they_bring_nothing() -> None:
    """It does 100 a second, however many ask."""
    play = Play(lambda under_way: max(0.2, under_way / 100), waiting=50_000)
    play.run(60, 1)
    assert play.concurrency.size <= 64


def test_a_provider_in_trouble_is_asked_by_fewer() -> None:
    play = Play(lambda _: 0.2, waiting=1_000_000)
    play.run(20, 1)
    assert play.concurrency.size == 256
    play.well = False
    play.run(4, 1)
    assert play.concurrency.size <= 32
    play.run(10, 1)
    assert play.concurrency.size == 16
    play.well = True
    play.run(5, 1)
    assert play.concurrency.size == 16  # it gets its rest
    play.run(30, 1)
    assert play.concurrency.size == 256


def test_a_number_that_was_set_is_kept() -> None:
    crew = AdaptiveConcurrency(4, 4)
    for at in range(1000):
        crew.full()
        crew.began(late=True)
        crew.ended(well=at % 2 == 0, now=at / 10)
        assert crew.size == 4


def test_late_is_a_part_of_what_there_was() -> None:
    assert not late(1_000_000, 1_300_000, 1_015_000)  # 15 s of a margin of five minutes
    assert late(1_000_000, 1_300_000, 1_015_001)
    assert not late(2_000_000, 2_300_000, 1_000_000)  # ahead of its time
    assert late(1_000_000, 0, 1_000_001)  # there is no access token yet
