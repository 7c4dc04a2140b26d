"""A few accounts are refused for good by words that could be meant for the client."""

from __future__ import annotations

from .provider import Book, Grant, Reply, oauth_error
from .scenario import Check, Figures, Scenario, Stage, given

BAD_SHARE = 0.03
ENDED = ("dead", "lost_rotation", "stopped")


class AFewUnauthorized(Scenario):
    """3 % are answered unauthorized_client or a bare 401 for good."""

    watched_s = 5400.0
    give_up_s = 3600.0
    tokens = given(give_up_s=give_up_s)
    late_max = 0.001
    bad_share = BAD_SHARE
    quick = given(fleet=300, life_s=300.0, margin_s=75.0, watched_s=150.0)
    shapes: tuple[Reply, ...] = (
        oauth_error(400, "unauthorized_client"),
        Reply(401, {}, kind="401 bare"),
    )

    async def fill(self, stage: Stage) -> None:
        book = stage.book
        grants = book.add(int(self.fleet * self.bad_share), stage.dice, bad=True) + book.add(
            self.fleet, stage.dice
        )
        stage.dice.shuffle(grants)
        await stage.cluster.put(book, grants)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return self.shapes[int(grant.name[1:]) % len(self.shapes)] if grant.bad else None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.watched_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        bad = [grant for grant in stage.book.grants.values() if grant.bad]
        found = [Check("events of the provider", figures.provider_events, 0)]
        if self.watched_s >= self.life_s + self.give_up_s:
            ended = sum(
                stage.states[f"{stage.book.name}/{grant.name}"]["state"] in ENDED for grant in bad
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
                if kind.removeprefix("account.") in ENDED
            }
            found.append(Check("share of them with an event", len(told) / len(bad), 1, least=True))
        found.append(
            Check("requests for each", figures.wasted / len(bad), max(6.0, self.watched_s / 300))
        )
        return found
