"""Every refresh token is refused for a while, wrongly; then all is well again."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Scenario, Stage, given

CONFIRM_S = 600.0


class AllRefused(Scenario):
    """All accounts are answered invalid_grant for 15 min, wrongly."""

    capacity = 20.0
    refused_s = 900.0
    settings = given(client_rate=capacity)
    quick = given(fleet=300, life_s=300.0, margin_s=75.0, refused_s=180.0)
    refusing = False

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(400, "invalid_grant") if self.refusing else None

    @property
    def recovery_limit_s(self) -> float:
        """From the end of the refusals on: the backlog, and one confirmation."""
        return 1.2 * self.fleet / self.capacity + CONFIRM_S

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(max(120.0, self.life_s / 4))  # the usual has been seen
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
            Check("wasted requests an account", figures.wasted / figures.fleet, 1.5),
        ]
