"""Some tokens are said to live for a second, for none, or to have expired already."""

from __future__ import annotations

from collections import Counter

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

LIVES_S = (1, 0, -1)
APART = 20
APART_S = 10.0
"""A token is asked for no more often, however short it is said to live."""


class ShortLives(Scenario):
    """Each twentieth account is given expires_in 1, 0 or -1."""

    rule = Rule(
        "no token is asked for more often than each ten seconds, however short it lives",
        (
            ("tokens/policy/due_times.py", "    if life < LIFE_S_MIN:\n", "    if False:\n"),
            ("tokens/policy/due_times.py", "LIFE_S_MIN if is_short(row) else 0.0", "0.0"),
        ),
    )
    factor = 5.0
    fleet = 1000
    life_s = 600.0
    margin_s = 200.0
    quick = given(fleet=300, life_s=200.0, margin_s=60.0)
    story = ""

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        number = int(grant.name[1:])
        if number % APART:
            return None
        grant.bad = True  # Its readers have no token for long.
        life_s = LIVES_S[number // APART % len(LIVES_S)]
        return Reply(200, kind=f"expires_in {life_s}", pair={"expires_in": life_s})

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.life_s)
        self.story = str(await stage.cluster.say("T.WHY", "shop/u00000"))

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        asked = Counter(one.grant.name for one in stage.book.asked if one.grant.bad)
        most = max(asked.values(), default=0)
        return [
            Check("accounts with such lives", len(asked), self.fleet // APART, least=True),
            Check("requests of the one that asked most", most, self.life_s / APART_S + 1),
            Check("told why", float("says that its token lives for" in self.story), 1, least=True),
        ]
