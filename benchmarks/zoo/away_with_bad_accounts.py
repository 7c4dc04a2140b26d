"""
A provider is away for longer than a token lives, and one account in twenty fails there for good.
"""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given


class AwayWithBadAccounts(Scenario):
    """Away for 1.2 lives (503); 5 % of the accounts are answered 500 for good."""

    rule = Rule(
        "while nearly all fail alike one request probes at a time",
        (
            (
                "tokens/limits/throttle.py",
                "called_for(record, kind, clock_ms) if getattr(counted, kind) else None",
                "None",
            ),
        ),
    )
    capacity = 20.0
    away_lives = 1.2
    bad = 100
    quick = given(fleet=300, bad=15, life_s=300.0, margin_s=75.0)
    away = False

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        if self.away:
            return Reply(503, "<html>maintenance</html>", kind="503 away")
        return Reply(500, "<html>oops</html>", kind="500 for good") if grant.bad else None

    @property
    def recovery_limit_s(self) -> float:
        """From its return on."""
        return 1.2 * self.fleet / self.capacity + 30

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(60)
        stage.mark("away")
        self.away = True
        await stage.clock.sleep(self.away_lives * self.life_s)
        self.away = False
        await stage.recover(4 * self.recovery_limit_s)
        await stage.clock.sleep(self.margin_s)

    def late(self, stage: Stage) -> int:
        """Still late when all could have been refreshed."""
        due_s = stage.marks["well"] + self.recovery_limit_s
        return len({one.grant.name for one in stage.book.lates if one.until_s > due_s})

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        away = stage.book.since(stage.marks["away"], stage.marks["well"])
        return [
            Check(
                "s from its return until all are fresh",
                figures.recovery_s or 0,
                self.recovery_limit_s,
            ),
            Check("requests while it was away", len(away), self.away_lives * self.life_s / 4 + 100),
            Check("events of the provider", figures.provider_events, 10),
        ]
