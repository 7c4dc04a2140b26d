"""Every refresh token is refused for a while, wrongly; then all is well again."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

CONFIRM_S = 600.0
NO_QUARANTINE = (
    "tokens/limits/judgement.py",
    "if failed >= enough and share >",
    "if False and share >",
)
NO_CLUSTER = (
    "tokens/policy/failures.py",
    "long or (not troubles.clustered and",
    "long or (True and",
)


class AllRefused(Scenario):
    """All accounts are answered invalid_grant for 90 min, wrongly: longer than an end takes."""

    rule = Rule("nobody is given up while accounts that were well are refused", (NO_QUARANTINE,))
    capacity = 20.0
    refused_s = 5400.0
    quick = given(fleet=300, life_s=300.0, margin_s=75.0, refused_s=600.0)
    refusing = False

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(400, "invalid_grant") if self.refusing else None

    @property
    def recovery_limit_s(self) -> float:
        """From the end of the refusals on: the backlog, and one confirmation."""
        return 1.2 * self.fleet / self.capacity + CONFIRM_S

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(300)  # The usual has been seen.
        stage.mark("refused")
        self.refusing = True
        await stage.clock.sleep(self.refused_s)
        self.refusing = False
        await stage.recover(2 * self.recovery_limit_s)
        await stage.clock.sleep(self.margin_s)

    def late(self, stage: Stage) -> int:
        due_s = stage.marks["well"] + self.recovery_limit_s
        return len(
            {
                one.grant.name
                for book in stage.books.values()
                for one in book.lates
                if one.until_s > due_s
            }
        )

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        begun = figures.events.get("provider.quarantine_begun", 0)
        opened = figures.events.get("provider.breaker_open", 0)
        return [
            Check("s until all are fresh", figures.recovery_s or 0, self.recovery_limit_s),
            Check(
                "told of it: quarantine or breaker, each provider",
                (begun + opened) / len(stage.books),
                1,
            ),
            Check("told at all", begun + opened, len(stage.books), least=True),
            Check(
                "wasted requests, beside a sample each ten seconds",
                figures.wasted - len(stage.books) * self.refused_s / 10,
                1.5 * figures.fleet,
            ),
        ]
