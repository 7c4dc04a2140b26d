"""The client's secret is wrong for a while."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

NOTICED_S = 15.0


class WrongSecret(Scenario):
    """Every request is answered 401 invalid_client for 10 min."""

    rule = Rule(
        "one node probes at a time",
        (
            (
                "tokens/limits/throttle.py",
                "return not (hold.claim and hold.claim_ms > clock_ms)",
                "return True",
            ),
        ),
    )
    # A backlog of two thirds of the fleet goes at once in the end: as fast as this machine can, not
    # the product.
    factor = 5.0
    calm_s = 60.0
    wrong_s = 600.0
    quick = given(factor=15.0, fleet=300, life_s=300.0, margin_s=75.0, wrong_s=50.0, calm_s=60.0)
    wrong = False

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return oauth_error(401, "invalid_client") if self.wrong else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.calm_s)
        stage.mark("wrong")
        self.wrong = True
        await stage.clock.sleep(self.wrong_s)
        self.wrong = False
        stage.mark("mended")
        asked = len(stage.book.asked)
        stage.marks["goes on"] = await stage.until(lambda: len(stage.book.asked) > asked + 4, 60)
        await stage.recover(120)
        await stage.clock.sleep(20)  # the incident is told to be over

    def late(self, stage: Stage) -> int:
        due_s = stage.marks["mended"] + 60
        return len({one.grant.name for one in stage.book.lates if one.until_s > due_s})

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        held = stage.book.since(stage.marks["wrong"] + NOTICED_S, stage.marks["mended"])
        return [
            Check(
                "requests under way at once while held",
                max((one.open for one in held), default=0),
                1,
            ),
            Check("requests while it was wrong", figures.wasted, self.wrong_s / 2 + 30),
            Check("s from the mend until all go on", stage.marks["goes on"], 5),
            Check("events of the provider", figures.provider_events, 2),
        ]
