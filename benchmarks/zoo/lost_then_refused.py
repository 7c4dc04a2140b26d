"""An answer is lost, and its replay within the grace is refused once, or told to wait."""

from __future__ import annotations

import itertools

from .provider import WELL, Asked, Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

REPLAYS = (
    (oauth_error(400, "invalid_grant"), 1),
    (oauth_error(429, "slow_down"), 3),
    (Reply(503, kind="503"), 3),
)
"""What the replays of one account in three each are answered, and how many of them."""

APART = 5
LEAST_S = 2.0
"""Between two requests for an account within a grace, at least; half of what is left, at most."""


class LostThenRefused(Scenario):
    """Each fifth account loses an answer; its replays are answered 400, 429 or 503 first."""

    rule = Rule(
        "within a grace whatever is answered leads to another request, before all others",
        (
            (
                "tokens/policy/failures.py",
                "return self.troubles.doubts > 0 and not self.used_spare",
                "return False and not self.used_spare",
            ),
        ),
    )
    factor = 5.0
    fleet = 1000
    life_s = 600.0
    margin_s = 200.0
    grace_s = 20.0
    quick = given(fleet=300, life_s=300.0, margin_s=100.0)

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.replays: dict[str, int] = {}

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        number = int(grant.name[1:])
        if number % APART:
            return None
        asked = self.replays.get(grant.name, 0)
        self.replays[grant.name] = asked + 1
        answer, times = REPLAYS[number // APART % len(REPLAYS)]
        if not asked:
            return Reply(kind="lost after processing", processed=True, cut=True)
        return answer if asked <= times else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.life_s + self.margin_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        lost = sum(bool(asked) for asked in self.replays.values())
        return [
            Check("s over half of what was left of a grace, at most", self._over_s(stage), 0),
            Check("answers lost", lost, self.fleet // APART, least=True),
            Check("grants revoked for the reuse of a token", len(stage.book.revoked_for_reuse), 0),
            Check("wasted requests for each that was lost", figures.wasted / max(1, lost), 6),
        ]

    def _over_s(self, stage: Stage) -> float:
        """By how much a replay came later than at half of what was left of its grace, at most."""
        asked: dict[str, list[Asked]] = {}
        for one in stage.book.asked:
            if one.grant.name in self.replays:
                asked.setdefault(one.grant.name, []).append(one)
        most_s = 0.0
        for requests in asked.values():
            until_s = requests[0].at_s + self.grace_s
            for one, following in itertools.pairwise(requests):
                if one.kind == WELL:
                    break
                allowed_s = max(LEAST_S, (until_s - one.at_s) / 2 + LEAST_S / 2)
                most_s = max(most_s, following.at_s - one.at_s - allowed_s)
        return most_s
