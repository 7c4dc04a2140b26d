"""Time-outs of a gateway and wrong refusals, mixed."""

from __future__ import annotations

import random

from .all_refused import NO_CLUSTER, NO_QUARANTINE, AllRefused
from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Stage, given


class Mixed504Refusals(AllRefused):
    """For 90 min 40 % of the requests are answered 504 and 40 % invalid_grant, wrongly."""

    rule = Rule(
        "no refusal counts while accounts that were well are refused by more than a few",
        (NO_QUARANTINE, NO_CLUSTER),
    )

    quick = given(fleet=300, factor=60.0)

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.dice = random.Random(504)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        drawn = self.dice.random()
        if not self.refusing or drawn < 0.2:
            return None
        if drawn < 0.6:
            return Reply(504, "<html>Gateway Time-out</html>", kind="504")
        return oauth_error(400, "invalid_grant")

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [
            Check("s until all are fresh", figures.recovery_s or 0, self.recovery_limit_s),
            Check("events of the provider", figures.provider_events, 4),
        ]
