"""A provider becomes slow, beside one that stays fast."""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

SLOW_S = 8.0


class SlowBesideFast(Scenario):
    """One provider takes 8 s an answer for 10 min; the other is fast."""

    rule = Rule(
        "a node has more requests under way while accounts are refreshed late for want of it",
        (
            (
                "tokens/limits/adaptive_concurrency.py",
                "self.size = min(self._most, self.size + max(4, self.size // 4))",
                "self.size = self.size + 0",
            ),
        ),
    )
    factor = 5.0
    fleet = 5000
    crowd = 0.0  # What is needed at a time is judged.
    providers: tuple[str, ...] = ("slow", "fast")
    life_s = 300.0
    margin_s = 100.0
    slow_s = 600.0
    quick = given(fleet=2000, life_s=150.0, margin_s=50.0, slow_s=200.0)
    slow = False

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | float | None:
        return SLOW_S if self.slow and book.name == "slow" else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(60)
        self.slow = True
        stage.mark("slow")
        await stage.clock.sleep(self.slow_s)
        self.slow = False
        await stage.recover(120)
        await stage.clock.sleep(30)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        needed = self.fleet / 2 / (self.life_s - self.margin_s) * SLOW_S
        return [
            Check(
                "refreshes under way at the slow one, beside what is needed",
                stage.book.most_open / needed,
                8,
            ),
            Check("events of a provider", figures.provider_events, 0),
            Check("wasted requests", figures.wasted, 0),
        ]
