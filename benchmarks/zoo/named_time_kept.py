"""Some accounts are told to wait for an hour; meanwhile a hold of all begins and ends."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given

NAMED_S = 3600.0


class NamedTimeKept(Scenario):
    """2 % are told 429 with Retry-After of an hour, once; then all are answered 503 for 5 min."""

    rule = Rule(
        "an account is not asked before a time that was named for it, whatever else is over",
        (("tokens/lua/rouse.lua", "(tonumber(troubles[20]) or 0) > at", "false"),),
    )
    away_s = 300.0
    quick = given(fleet=300, factor=60.0)
    away = False

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.told: set[str] = set()

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        if int(grant.name[1:]) % 50 == 0 and grant.name not in self.told:
            self.told.add(grant.name)
            grant.bad = True  # Its readers go without for the time that was named.
            return oauth_error(429, "slow_down", Retry_After=str(int(NAMED_S)))
        return Reply(503, kind="503") if self.away else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.life_s)
        self.away = True
        await stage.clock.sleep(self.away_s)
        self.away = False
        await stage.recover(300.0)
        await stage.clock.sleep(NAMED_S + 300)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        again = sum(grant.number > 1 for grant in stage.book.grants.values() if grant.bad)
        return [
            Check("told to wait", len(self.told), self.fleet // 50, least=True),
            Check("asked, and well, after it", again, len(self.told), least=True),
            Check("s until all others are fresh", figures.recovery_s or 0, 120),
        ]
