"""All grants are revoked for good: the client was deleted at the provider."""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

HOUR_S = 3600.0
SAMPLED_S = 4.0
"""Beside the first refusal of each, samples are asked so often, at most."""


class MassRevoked(Scenario):
    """Every grant ends at one moment; an hour later the operator says that it is so."""

    rule = Rule(
        "an operator's word ends a quarantine, and with it the accounts that are refused",
        (("tokens/policy/failures.py", "    if case.released:\n", "    if False:\n"),),
    )
    unsaid_s = HOUR_S
    quick = given(factor=60.0, fleet=300, life_s=300.0, margin_s=75.0, unsaid_s=900.0)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(120)
        for grant in stage.book.grants.values():
            grant.alive, grant.bad = False, True
        stage.mark("revoked")
        await stage.clock.sleep(self.unsaid_s)
        stage.mark("told")
        stage.clock.run_at(1.0)
        stage.said = await stage.cluster.run_cli("token", "provider", "release", stage.book.name)
        stage.clock.run_at(self.factor)
        await stage.clock.sleep(HOUR_S + 900)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        hour = stage.book.since(stage.marks["revoked"], stage.marks["told"])
        told = {data["account"] for kind, data in stage.events if kind == "account.dead"}
        return [
            Check("told of the quarantine", figures.events.get("provider.quarantine_begun", 0), 1),
            Check("told at all", figures.events.get("provider.quarantine_begun", 0), 1, least=True),
            Check(
                "requests an account before the operator's command",
                len(hour) / self.fleet,
                1 + self.unsaid_s / SAMPLED_S / self.fleet,
            ),
            Check("requests an account in all", figures.wasted / self.fleet, 4),
            Check(
                "share that is dead after it",
                figures.states.get("dead", 0) / self.fleet,
                1,
                least=True,
            ),
            Check("share of them with an event", len(told) / self.fleet, 1, least=True),
        ]
