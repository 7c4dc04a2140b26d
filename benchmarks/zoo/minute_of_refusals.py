"""A crowd falls due in a minute in which the provider refuses everybody, wrongly."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Scenario, Stage, given


class MinuteOfRefusals(Scenario):
    """All accounts fall due together and are answered invalid_grant for a minute."""

    factor = 5.0
    fleet = 1000
    refused_s = 60.0
    quick = given(fleet=300)
    refusing = True

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(400, "invalid_grant") if self.refusing else None

    async def fill(self, stage: Stage) -> None:
        # All of them were well here before: who never was shows nothing.
        self.refusing = False
        grants = stage.book.add(self.fleet, stage.dice, soon_s=1.0)
        for grant in grants:
            grant.expires_s = stage.clock.now_s() + 1.0
        await stage.cluster.put(stage.book, grants)
        limit_s = stage.clock.now_s() + 120
        while any(not grant.number for grant in grants) and stage.clock.now_s() < limit_s:
            await stage.clock.sleep(0.1)

    async def play(self, stage: Stage) -> None:
        due_s = min(grant.expires_s for grant in stage.book.grants.values()) - self.margin_s
        await stage.clock.sleep(max(0.0, due_s - 40 - stage.clock.now_s()))
        self.refusing = True
        first = stage.mark("refused")
        await stage.until(lambda: stage.book.since(first), 120)
        await stage.clock.sleep(self.refused_s)
        self.refusing = False
        well_s = stage.mark("well")
        self.again_s = await stage.until(lambda: self._well(stage) >= 0.9 * self.fleet, 600)
        await stage.clock.sleep(max(0.0, well_s + self.margin_s - stage.clock.now_s()))

    def late(self, stage: Stage) -> int:
        refused_s = stage.marks["refused"]
        return len({one.grant.name for one in stage.book.lates if one.from_s > refused_s})

    def _well(self, stage: Stage) -> int:
        return sum(grant.troubled_s < grant.used_s for grant in stage.book.grants.values())

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [
            Check("s until nine in ten were refreshed", self.again_s, 60),
            Check("told of it", figures.events.get("provider.quarantine_begun", 0), 1),
            Check("wasted requests an account", figures.wasted / figures.fleet, 2.5),
        ]
