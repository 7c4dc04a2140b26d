"""A limit below what is needed, told by 429."""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

BURST_S = 2.0
BEGUN_S = 120.0
PASSED_S = 60.0


class TrueLimit(Scenario):
    """
    0.8 of what is needed is allowed: by one provider told with Retry-After, by the other without.
    """

    rule = Rule(
        "where many answers are 429 the rate of the client becomes what was answered well",
        (
            (
                "tokens/limits/throttle.py",
                "return limited >= least and limited > LIMITED_SHARE * answered",
                "return False",
            ),
        ),
    )
    factor = 10.0
    crowd = 0.0  # The limit is a part of what is needed at every moment.
    life_s = 300.0
    margin_s = 100.0
    watched_s = 900.0
    providers: tuple[str, ...] = ("said", "unsaid")
    quick = given(fleet=1000, watched_s=300.0)

    def __init__(self, *, quick: bool = False) -> None:
        super().__init__(quick=quick)
        self.room: dict[str, float] = {}
        self.at_s: dict[str, float] = {}
        self.passed_over = 0

    @property
    def limit(self) -> float:
        """Of each provider, refreshes a second."""
        return 0.8 * self.fleet / len(self.providers) / (self.life_s - self.margin_s)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        burst = self.limit * BURST_S
        room = min(
            burst,
            self.room.get(book.name, burst) + (now - self.at_s.get(book.name, now)) * self.limit,
        )
        self.at_s[book.name] = now
        if room < 1:
            self.room[book.name] = room
            said = (
                {"Retry-After": str(round((1 - room) / self.limit + 0.5))}
                if book.name == "said"
                else {}
            )
            return Reply(429, {"error": "slow_down"}, said, kind="429")
        self.room[book.name] = room - 1
        if grant.expires_s > now and any(
            now < other.expires_s < grant.expires_s - PASSED_S
            and other.troubled_s < other.expires_s - self.life_s
            for other in book.grants.values()
        ):
            self.passed_over += 1
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(BEGUN_S)
        stage.mark("judged")
        await stage.clock.sleep(self.watched_s)

    def late(self, stage: Stage) -> int:
        return 0  # a fifth of them cannot be helped; the order is judged below

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        found = []
        for name, book in stage.books.items():
            asked = book.since(stage.marks["judged"])
            well = sum(one.kind == "well" for one in asked)
            goodput = well / (figures.seconds - BEGUN_S)
            found.append(
                Check(
                    f"{name}: share of the limit that was used",
                    goodput / self.limit,
                    0.9,
                    least=True,
                )
            )
            found.append(Check(f"{name}: share of 429", 1 - well / max(1, len(asked)), 0.05))
        order = self.passed_over / max(1, figures.answers.get("well", 0))
        return [
            *found,
            Check("share of refreshes ahead of a living token that expires sooner", order, 0.1),
        ]
