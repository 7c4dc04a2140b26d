"""
Accounts that fail for good are imported first, and all others after them; the provider is well.
"""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

BAD = 60


class BadImportedFirst(Scenario):
    """60 accounts that are answered 500 for good are imported before all others."""

    rule = Rule(
        "who probes must be able to succeed",
        (("tokens/limits/client_limits.py", "PROBES_BY = (0, 1, 2)", "PROBES_BY = (2,)"),),
    )
    proven = False  # It is about an import.
    watched_s = 1800.0
    quick = given(fleet=300, life_s=300.0, margin_s=75.0, watched_s=100.0)

    async def fill(self, stage: Stage) -> None:
        book = stage.book
        bad = book.add(BAD, stage.dice, bad=True)
        for grant in bad:
            grant.expires_s = stage.clock.now_s() - 1
        await stage.cluster.put(book, bad)
        stage.clock.run_at(self.factor)
        await stage.clock.sleep(20)
        stage.clock.run_at(1.0)
        await stage.cluster.put(book, book.add(self.fleet, stage.dice, crowd=self.crowd))

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return Reply(500, "<html>oops</html>", kind="500 for good") if grant.bad else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.watched_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [
            # In the first half hour a pause that doubles from some seconds has room for about ten
            # tries.
            Check("requests for an account that fails for good", figures.wasted / BAD, 15),
            Check("events of the provider", figures.provider_events, 2),
        ]
