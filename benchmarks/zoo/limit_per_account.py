"""A limit for each account, beside none for the client."""

from __future__ import annotations

import asyncio
import contextlib

import redis

from .provider import WELL, Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

EACH_S = 60.0


class LimitPerAccount(Scenario):
    """
    One request an account and minute is allowed; the workers of 2 % of the accounts ask for more.
    """

    rule = Rule(
        "a 429 to an account that was asked long before it was due says nothing of the others",
        (
            (
                "tokens/limits/answer_counts.py",
                'if kind == "limited" and self.early else',
                "if False else",
            ),
        ),
    )
    crowd = 0.0  # It is judged by how many wait in the end, which a crowd would make many.
    watched_s = 1200.0
    eager_share = 0.02
    every_s = 20.0
    quick = given(fleet=300, life_s=300.0, margin_s=75.0, watched_s=200.0, eager_share=0.08)

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.asked_s: dict[str, float] = {}

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        before = self.asked_s.get(grant.name, now - EACH_S)
        if now - before < EACH_S:
            return oauth_error(
                429, "rate_limit_exceeded", Retry_After=str(round(before + EACH_S - now + 0.5))
            )
        self.asked_s[grant.name] = now
        return None

    async def play(self, stage: Stage) -> None:
        eager = list(stage.book.grants)[: int(self.fleet * self.eager_share)]
        for name in eager:
            stage.book.grants[name].by_hand = True
        over_s = stage.clock.now_s() + self.watched_s
        asking = [asyncio.create_task(self._ask(stage, name, over_s)) for name in eager]
        await asyncio.gather(*asking)

    async def _ask(self, stage: Stage, name: str, over_s: float) -> None:
        """A worker that has its token refreshed again and again, as after a 401."""
        await stage.clock.sleep(self.every_s * stage.dice.random())
        while stage.clock.now_s() < over_s:
            with contextlib.suppress(redis.ResponseError):  # such as TIMEOUT
                await stage.cluster.say("T.REFRESH", f"{stage.book.name}/{name}")
            await stage.clock.sleep(self.every_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        others = [one for one in stage.book.asked if not one.grant.by_hand]
        well = sum(one.kind == WELL for one in others)
        waiting = figures.states.get("expiring", 0) + figures.states.get("late", 0)
        return [
            Check(
                "share of the accounts that are due and wait in the end",
                waiting / figures.fleet,
                0.03,
            ),
            Check("429 of the others", len(others) - well, 0),
            Check("events of the provider", figures.provider_events, 0),
        ]
