"""
Answers are lost after the request was processed; within a short grace the same token still works.
"""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .random_429 import Random429
from .scenario import Check, Figures, Rule, Stage, given

SLOW_S = 2.0
"""Each answer takes so long: a node that is killed has some requests under way."""


class LostAnswers(Random429):
    """2 % of the answers are lost, grace 20 s; 1 % are 429; a node is killed now and then."""

    rule = Rule(
        "nobody waits for the word of a node that is away past the grace of a refresh token",
        (
            (
                "tokens/policy/failures.py",
                "now_ms - doubt_ms < grace_s * 1000 or left_s <= PATIENCE_FLOOR_S",
                "left_s <= PATIENCE_FLOOR_S",
            ),
        ),
    )
    factor = 5.0
    grace_s = 20.0
    lost_share = 0.02
    life_s = 300.0
    margin_s = 100.0
    kill_every_s = 120.0
    watched_s = 600.0
    quick = given(fleet=600, watched_s=100.0, kill_every_s=40.0)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | float | None:
        if self.dice.random() < self.lost_share:
            return Reply(kind="lost after processing", processed=True, cut=True)
        return super().reply(book, grant, now) or SLOW_S

    async def play(self, stage: Stage) -> None:
        killed, over_s = 0, stage.clock.now_s() + self.watched_s
        while (left_s := over_s - stage.clock.now_s()) > 0:
            await stage.clock.sleep(min(left_s, self.kill_every_s))
            if stage.clock.now_s() < over_s:
                await stage.cluster.kill(killed % len(stage.cluster.ports))
                killed += 1
        await stage.clock.sleep(60)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [
            Check("grants revoked for the reuse of a token", len(stage.book.revoked_for_reuse), 0),
            *super().judge(stage, figures),
        ]
