"""Fleets whose tokens live long, or that are small, at providers that are wrong for hours."""

from __future__ import annotations

from dataclasses import dataclass

from .fast_clock import FastClock
from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

HOUR_S = 3600.0
CALM_S = 1800.0
AFTER_S = 1.5 * HOUR_S
"""Whoever was refused for long is asked again, and could be given up still."""
SAMPLED_AN_HOUR = 400
"""Of each provider: one in ten seconds in the first hour, and a few of the accounts' own."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One provider's accounts, and which of them it refuses, for how long."""

    accounts: int
    life_s: float
    share: float
    wrong_s: float


FLEETS = {
    "workday": Fleet(200, 8 * HOUR_S, 0.4, 3 * HOUR_S),
    "sixty": Fleet(60, 8 * HOUR_S, 0.9, 3 * HOUR_S),
    "day": Fleet(500, 24 * HOUR_S, 0.4, 6 * HOUR_S),
    "dozen": Fleet(12, HOUR_S, 0.4, 3 * HOUR_S),
}


class SlowAndSmall(Scenario):
    """200 accounts of 8 h, 60 of 8 h, 500 of 24 h and 12 of 1 h: most are refused for hours."""

    rule = Rule(
        "an incident is judged by an hour's answers, or the last fifty, whichever are more",
        (
            (
                "tokens/limits/answer_counts.py",
                "since_ms = max(opened_ms, clock_ms - HOUR_MS)\n    seen, from_ms",
                "since_ms = opened_ms = max(opened_ms, clock_ms - 600_000)\n    seen, from_ms",
            ),
        ),
    )
    factor = 100.0
    one_store = True
    crowd = 0.0  # Few fall due in an hour, which is what it is about.
    fleet = sum(one.accounts for one in FLEETS.values())
    providers: tuple[str, ...] = tuple(FLEETS)
    began_s = float("inf")
    parts = 1.0
    """Of the hours for which they are refused."""
    quick = given(providers=("sixty", "dozen"), parts=1 / 3)

    def book_of(self, name: str, clock: FastClock) -> Book:
        return Book(name, clock, FLEETS[name].life_s, self.margin_s, self.grace_s)

    def accounts_of(self, name: str) -> int:
        return FLEETS[name].accounts

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        found = FLEETS[book.name]
        wrong = int(grant.name[1:]) * 7919 % 1000 < 1000 * found.share
        if wrong and 0 <= now - self.began_s < self.parts * found.wrong_s:
            return oauth_error(400, "invalid_grant")
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.parts * CALM_S)
        self.began_s = stage.clock.now_s()
        longest_s = max(FLEETS[name].wrong_s for name in self.providers)
        await stage.clock.sleep(self.parts * (longest_s + AFTER_S))

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        begun = stage.told("provider.quarantine_begun")
        hours = sum(self.parts * FLEETS[name].wrong_s for name in self.providers) / HOUR_S
        return [
            Check("told of it, each provider", max(begun.values(), default=0), 1),
            Check("providers told of", len(begun), len(self.providers), least=True),
            Check("wasted requests an hour of refusals", figures.wasted / hours, SAMPLED_AN_HOUR),
        ]
