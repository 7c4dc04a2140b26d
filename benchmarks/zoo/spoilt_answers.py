"""New pairs come in answers that are not what they say."""

from __future__ import annotations

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

SPOILT = (
    Reply(200, headers={"Content-Encoding": "gzip"}, kind="plain, said to be gzip", pair={}),
    Reply(200, headers={"Content-Encoding": "br"}, kind="plain, said to be br", pair={}),
    Reply(200, kind="cut behind the pair", pair={"scope": "all that there is"}, cut=True),
)
APART = 5


class SpoiltAnswers(Scenario):
    """Each fifth account is answered with an untrue Content-Encoding, or a body without its end."""

    rule = Rule(
        "of an answer that breaks off the pair that has come is used",
        (
            (
                "tokens/provider/token_response.py",
                "members or (_come(answer, rules) if answer.cut else {})",
                "members or {}",
            ),
        ),
    )
    factor = 5.0
    fleet = 1000
    life_s = 300.0
    margin_s = 100.0
    grace_s = 20.0
    quick = given(fleet=300, life_s=150.0, margin_s=50.0)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        number = int(grant.name[1:])
        return None if number % APART else SPOILT[number // APART % len(SPOILT)]

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(3 * self.life_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        book = stage.book
        spoilt = sum(count for kind, count in book.kinds.items() if kind.startswith(("pl", "cut")))
        late = {one.grant.name for one in book.lates}
        return [
            Check("answers spoilt", spoilt, self.fleet // APART, least=True),
            Check("accounts late for it", len(late), 0),
            Check("grants revoked for the reuse of a token", len(book.revoked_for_reuse), 0),
        ]
