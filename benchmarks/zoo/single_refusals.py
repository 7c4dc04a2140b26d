"""Now and then a refusal is wrong: whoever is asked next is answered well."""

from __future__ import annotations

import random

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

SHARES = {"rare": 0.001, "some": 0.01, "many": 0.05}


class SingleRefusals(Scenario):
    """0.1, 1 and 5 % of the answers of three providers are invalid_grant for a day, wrongly."""

    rule = Rule(
        "a refused account is asked at half of what its token lives, uncounted",
        (
            (
                "tokens/policy/failures.py",
                "wait = min(wait, _uncounted_wait_s(case))",
                "wait = wait",
            ),
        ),
    )
    factor = 60.0
    one_store = True
    fleet = 2100
    life_s = 3600.0
    providers: tuple[str, ...] = tuple(SHARES)
    watched_s = 86_400.0
    late_max = 0.001
    quick = given(fleet=600, watched_s=7200.0)

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.dice = random.Random(1000)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        wrong = self.dice.random() < SHARES[book.name]
        return oauth_error(400, "invalid_grant") if wrong else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.watched_s)

    def late(self, stage: Stage) -> int:
        """Also those that were refused: it is they whose readers would go without."""
        return sum(len({one.grant.name for one in book.lates}) for book in stage.books.values())

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        begun = stage.told("provider.quarantine_begun")
        return [
            Check("told of an incident where one in twenty is refused", begun["many"], 1),
            Check("told of one elsewhere", begun.total() - begun["many"], 0),
            Check("wasted requests, of all", figures.wasted / figures.asked, 0.05),
        ]
