"""A crowd falls due in a minute in which the provider refuses everybody, wrongly."""

from __future__ import annotations

from .provider import CROWD_AT, Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

AHEAD_S, AHEAD_FACTOR = 60.0, 20.0
"""So long before the crowd falls due nothing matters yet."""
SAMPLED_S = 15.0
"""Within so long of the first refusals the first account is asked again, and then the next."""


class MinuteOfRefusals(Scenario):
    """All accounts fall due together and are answered invalid_grant for a minute."""

    rule = Rule(
        "one of those that a quarantine is for is asked each ten seconds",
        (
            (
                "tokens/limits/client_record.py",
                "not found.ending_ms and clock_ms >= found.sample_ms",
                "False",
            ),
        ),
    )
    factor = 5.0
    fleet = 1000
    refused_s = 60.0
    crowd = 1.0
    settings = given(level_share=0.0)  # A crowd that could not be spread beforehand.
    quick = given(fleet=300, life_s=600.0, margin_s=200.0)
    refusing = False
    again_s = 0.0

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(400, "invalid_grant") if self.refusing else None

    async def play(self, stage: Stage) -> None:
        due_s = CROWD_AT * (self.life_s - self.margin_s)
        stage.clock.run_at(AHEAD_FACTOR)
        await stage.clock.sleep(due_s - AHEAD_S)
        stage.clock.run_at(self.factor)
        self.refusing = True
        begun = stage.mark("begun")
        await stage.until(lambda: stage.book.since(begun), self.life_s)
        stage.mark("refused")
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
            Check("s between two that were asked again", self._apart_s(stage), SAMPLED_S),
            Check("s until nine in ten were refreshed", self.again_s, 60),
            Check("told of it", figures.events.get("provider.quarantine_begun", 0), 1),
            Check("wasted requests an account", figures.wasted / figures.fleet, 2.5),
        ]

    def _apart_s(self, stage: Stage) -> float:
        """For how long nobody was asked again who had been refused, at most."""
        seen: set[str] = set()
        last_s, most_s = stage.marks["refused"], 0.0
        for one in stage.book.since(last_s, stage.marks["well"]):
            if one.grant.name in seen:
                most_s, last_s = max(most_s, one.at_s - last_s), one.at_s
            seen.add(one.grant.name)
        return max(most_s, stage.marks["well"] - last_s)
