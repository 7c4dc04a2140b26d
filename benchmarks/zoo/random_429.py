"""A provider that says 429 now and then, without need."""

from __future__ import annotations

import random

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given


class Random429(Scenario):
    """
    1 % of the answers are 429 with Retry-After: 1; capacity is ample, 20 refreshes/s are needed.
    """

    rule = Rule(
        "the rate of a client shrinks by the share of 429, not by single ones",
        (
            (
                "tokens/limits/throttle.py",
                "return limited >= least and limited > LIMITED_SHARE * answered",
                "return limited > 0",
            ),
        ),
    )
    factor = 10.0
    crowd = 0.0  # It is judged by how many wait in the end, which a crowd would make many.
    life_s = 150.0
    margin_s = 50.0
    watched_s = 600.0
    share = 0.01
    quick = given(fleet=1000, watched_s=140.0)

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.dice = random.Random(429)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | float | None:
        if self.dice.random() < self.share:
            return oauth_error(429, "slow_down", Retry_After="1")
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.watched_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        waiting = figures.states.get("expiring", 0) + figures.states.get("late", 0)
        return [
            Check(
                "share of the accounts that are due and wait in the end",
                waiting / figures.fleet,
                0.03,
            ),
            Check("events of the provider", figures.provider_events, 0),
        ]
