"""A fleet is imported whose tokens expire together."""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

WINDOW_S = 10.0


class Imported(Scenario):
    """All accounts are imported at once, and their tokens expire within ten seconds."""

    rule = Rule(
        "what will fall due together is refreshed ahead, one by one",
        (
            (
                "tokens/refresh/load_leveller.py",
                "            provider.level_share > 0\n",
                "            provider.level_share > 1\n",
            ),
        ),
    )
    proven = False  # It is about an import.
    crowd = 1.0
    quick = given(fleet=600, life_s=400.0, margin_s=100.0)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(0.75 * self.life_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        times = [one.at_s for one in stage.book.asked]
        most = max(
            (sum(at <= other < at + WINDOW_S for other in times) for at in times[::10]), default=0
        )
        first = sum(grant.number > 0 for grant in stage.book.grants.values())
        return [
            Check("accounts refreshed", first, self.fleet, least=True),
            Check("share refreshed within the busiest ten seconds", most / self.fleet, 0.15),
            Check("wasted requests", figures.wasted, 0),
        ]
