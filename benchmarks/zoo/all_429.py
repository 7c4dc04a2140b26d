"""Everybody is answered 429, and no time is named; then all is well again."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given


class All429(Scenario):
    """All are answered 429 without Retry-After for 10 min."""

    rule = Rule(
        "a rate that shows no bound doubles with each good second",
        (("tokens/limits/throttle.py", "    if rate.doubled_ms:\n", "    if False:\n"),),
    )
    capacity = 20.0
    limited_s = 600.0
    quick = given(fleet=300, life_s=600.0, margin_s=150.0)
    limiting = False

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(429, "slow_down") if self.limiting else None

    @property
    def recovery_limit_s(self) -> float:
        """The backlog at what the fleet once needed at most, half as much again, and a probe."""
        return 1.5 * self.fleet / self.capacity + 30

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(max(120.0, self.life_s / 4))
        self.limiting = True
        await stage.clock.sleep(self.limited_s)
        self.limiting = False
        await stage.recover(4 * self.recovery_limit_s)
        await stage.clock.sleep(60)

    def late(self, stage: Stage) -> int:
        due_s = stage.marks["well"] + self.recovery_limit_s
        return len({one.grant.name for one in stage.book.lates if one.until_s > due_s})

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [
            Check("s until all are fresh", figures.recovery_s or 0, self.recovery_limit_s),
            Check("wasted requests an account", figures.wasted / figures.fleet, 3),
        ]
