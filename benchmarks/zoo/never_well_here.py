"""A fleet is imported, and refused from the first request on: the client's id is another's."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

HANDFUL = 6


class NeverWellHere(Scenario):
    """No account was ever refreshed here, and all are answered invalid_grant for a day."""

    rule = Rule(
        "a client of which no account was ever well shows nothing about its accounts",
        (
            (
                "tokens/limits/judgement.py",
                "if record.unproven >= UNPROVEN_HANDFUL:",
                "if False:",
            ),
        ),
    )
    factor = 100.0
    one_store = True
    proven = False  # It is about an import.
    watched_s = 86_400.0
    quick = given(fleet=300, watched_s=5400.0)
    told_s = 0.0

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(400, "invalid_grant")

    async def play(self, stage: Stage) -> None:
        stage.clock.run_at(5.0)
        await stage.until(lambda: len(stage.book.asked) >= HANDFUL, 300)
        self.told_s = await stage.until_told("provider.quarantine_begun", 60)
        stage.clock.run_at(self.factor)
        await stage.clock.sleep(self.watched_s)

    def late(self, stage: Stage) -> int:
        return 0  # None of them could be refreshed.

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        begun = figures.events.get("provider.quarantine_begun", 0)
        last = stage.book.since(stage.clock.now_s() - self.watched_s / 6)
        return [
            Check("s until it is told", self.told_s, 30),
            Check("told of it", begun, 1),
            Check("told at all", begun, 1, least=True),
            Check("requests in the last sixth of it, an account", len(last) / self.fleet, 0.5),
        ]
