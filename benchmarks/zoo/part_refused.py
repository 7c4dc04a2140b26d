"""A part of the provider refuses its accounts, wrongly and for long; the rest of it is well."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Scenario, Stage, given


class PartRefused(Scenario):
    """8 % of the accounts are answered invalid_grant for 90 min, longer than an end takes."""

    factor = 60.0
    part = 0.08
    refused_s = 5400.0
    quick = given(fleet=300)
    refusing = False

    def wrong(self, grant: Grant) -> bool:
        """Whether an account lies in that part."""
        return int(grant.name[1:]) * 7919 % 1000 < 1000 * self.part

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(400, "invalid_grant") if self.refusing and self.wrong(grant) else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.life_s)  # Each was refreshed here, and is known to be well.
        self.refusing = True
        await stage.clock.sleep(self.refused_s)
        self.refusing = False
        await stage.recover(600.0)
        await stage.clock.sleep(self.margin_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        part = sum(self.wrong(grant) for grant in stage.book.grants.values())
        begun = figures.events.get("provider.quarantine_begun", 0)
        return [
            Check("s until all are fresh", figures.recovery_s or 0, 60),
            Check("told of it", begun, 1),
            Check("told at all", begun, 1, least=True),
            # One in ten seconds, and a few while the tokens of the first live.
            Check("wasted requests", figures.wasted, self.refused_s / 10 + 10 * part),
        ]
