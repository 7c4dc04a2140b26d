"""A few accounts are refused for good by words that could be meant for the client."""

from __future__ import annotations

from .cluster import GIVEN_UP
from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Rule, Scenario, Stage, given


class AFewUnauthorized(Scenario):
    """3 % are answered unauthorized_client or a bare 401 for good."""

    rule = Rule(
        "all are held back only where nearly all fail alike",
        (
            (
                "tokens/limits/throttle.py",
                "if failed >= least and failed >= HELD_SHARE * asked:",
                "if failed >= least:",
            ),
        ),
    )
    factor = 12.0
    life_s = 300.0
    margin_s = 75.0
    watched_s = 5400.0
    give_up_s = 3600.0
    tokens = given(give_up_s=give_up_s)  # By default four days, which are too long to be played.
    late_max = 0.001
    bad = 60
    ended: tuple[str, ...] = GIVEN_UP
    ends_s = life_s + give_up_s
    """Within so long they are given up."""
    # With more of them, five in a row come by chance alone now and then, which is a hold.
    quick = given(fleet=300, bad=40, watched_s=120.0)
    shapes: tuple[Reply, ...] = (
        oauth_error(400, "unauthorized_client"),
        Reply(401, {}, kind="401 bare"),
    )

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return self.shapes[int(grant.name[1:]) % len(self.shapes)] if grant.bad else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.watched_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        bad = [grant for grant in stage.book.grants.values() if grant.bad]
        found = [Check("events of the provider", figures.provider_events, 0)]
        if self.watched_s >= self.ends_s:
            ended = sum(
                stage.states[f"{stage.book.name}/{grant.name}"]["state"] in self.ended
                for grant in bad
            )
            found.append(
                Check(
                    "share of those refused that ended in a told state",
                    ended / len(bad),
                    1,
                    least=True,
                )
            )
            told = {
                data["account"]
                for kind, data in stage.events
                if kind.removeprefix("account.") in self.ended
            }
            found.append(Check("share of them with an event", len(told) / len(bad), 1, least=True))
        found.append(
            Check("requests for each", figures.wasted / len(bad), max(6.0, self.watched_s / 300))
        )
        return found
