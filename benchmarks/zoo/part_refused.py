"""A part of the provider refuses its accounts, wrongly and for long; the rest of it is well."""

from __future__ import annotations

from .all_refused import NO_CLUSTER, NO_QUARANTINE
from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

PARTS = {"part5": 0.05, "part8": 0.08, "part15": 0.15}


class PartRefused(Scenario):
    """5, 8 and 15 % of the accounts of three providers are refused for 90 min, wrongly."""

    rule = Rule(
        "a part of a provider has its quarantine, and what is below one takes a day",
        (NO_QUARANTINE, NO_CLUSTER),
    )
    fleet = 3000
    providers: tuple[str, ...] = tuple(PARTS)
    refused_s = 5400.0
    quick = given(fleet=600, factor=60.0)
    refusing = False

    def wrong(self, book: Book, grant: Grant) -> bool:
        """Whether an account lies in that part."""
        return int(grant.name[1:]) * 7919 % 1000 < 1000 * PARTS[book.name]

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        refused = self.refusing and self.wrong(book, grant)
        return oauth_error(400, "invalid_grant") if refused else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(300)  # The usual has been seen.
        self.refusing = True
        await stage.clock.sleep(self.refused_s)
        self.refusing = False
        await stage.recover(600.0)
        await stage.clock.sleep(self.margin_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        begun = stage.told("provider.quarantine_begun")
        wrong = sum(
            self.wrong(book, grant) for book in stage.books.values() for grant in book.healthy
        )
        return [
            Check("s until all are fresh", figures.recovery_s or 0, 60),
            Check("told of it, each provider", max(begun.values(), default=0), 1),
            Check("providers told of", len(begun), len(PARTS), least=True),
            # One in ten seconds, and a few of each while its token lives.
            Check("wasted requests", figures.wasted, len(PARTS) * self.refused_s / 10 + 10 * wrong),
        ]
