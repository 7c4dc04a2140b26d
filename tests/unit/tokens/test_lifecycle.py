"""Which of what becomes of accounts is an event: each trouble is told once, and its end."""

from __future__ import annotations

from typing import Any

from tidewarden.tokens.accounts.account_record import RefreshTroubles
from tidewarden.tokens.events.lifecycle import AccountLifecycle


class Heard:
    """Outbox and companions in one."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def fresh(self, account: str) -> None:
        self.calls.append(("fresh", account))

    def over(self, account: str) -> None:
        self.calls.append(("over", account))

    def look(self, provider: str, account: str = "") -> None:
        self.calls.append(("look", provider, account))

    def taken(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


def troubles(last_s: int, *, dead: bool = False) -> RefreshTroubles:
    return RefreshTroubles(
        tries=1, first_ms=1000, last_ms=1000 + last_s * 1000, outcome="x", dead=dead
    )


def test_each_trouble_is_told_once_and_its_end() -> None:
    heard = Heard()
    tidings = AccountLifecycle(heard, heard, 600)  # type: ignore[arg-type]
    assert tidings.event_of(RefreshTroubles(), troubles(0)) == ""
    assert tidings.event_of(troubles(0), troubles(599)) == ""
    assert tidings.event_of(troubles(599), troubles(600)) == "account.failing"
    assert tidings.event_of(troubles(600), troubles(700)) == ""
    assert tidings.event_of(troubles(700), troubles(800, dead=True)) == "account.dead"
    assert tidings.event_of(troubles(800, dead=True), troubles(900, dead=True)) == ""
    stopped = RefreshTroubles(tries=9, first_ms=1000, last_ms=900_000, stopped=True)
    assert tidings.event_of(troubles(700), stopped) == "account.stopped"
    assert tidings.event_of(stopped, stopped) == ""
    assert tidings.event_of(stopped, troubles(901, dead=True)) == "account.dead"
    tidings.failed("p", "a", "account.stopped")
    assert heard.taken() == [("over", "p/a"), ("look", "p", "a")]
    tidings.failed("p", "a", "")
    assert heard.taken() == []
    tidings.failed("p", "a", "account.failing")
    assert heard.taken() == [("look", "p", "a")]
    tidings.failed("p", "a", "account.dead")
    assert heard.taken() == [("over", "p/a"), ("look", "p", "a")]
    tidings.refreshed("p", "a", recovered=False)
    assert heard.taken() == [("fresh", "p/a")]
    tidings.refreshed("p", "a", recovered=True)
    assert heard.taken() == [("fresh", "p/a"), ("look", "p", "a")]
    tidings.granted("p", "a", living=False, recovered=True)
    tidings.granted("p", "a", living=True, recovered=False)
    tidings.granted("p", "a", living=False, recovered=False)
    tidings.deleted("p", "a")
    assert heard.taken() == [("look", "p", "a"), ("fresh", "p/a"), ("over", "p/a")]
    tidings.of_provider("p")
    assert heard.taken() == [("look", "p", "")]


def test_whoever_fails_with_others_is_told_of_unless_an_event_said_it_of_them_all() -> None:
    tidings = AccountLifecycle(Heard(), Heard(), 600)  # type: ignore[arg-type]

    def shared(last_s: int, *, told: bool = False) -> RefreshTroubles:
        return RefreshTroubles(first_ms=1, last_ms=1 + last_s * 1000, outcome="x", told=told)

    assert tidings.event_of(shared(0), shared(599)) == ""
    assert tidings.event_of(shared(599), shared(600), client_told=True) == ""
    assert tidings.event_of(shared(600), shared(700), client_told=False) == "account.failing"
    assert tidings.event_of(shared(700, told=True), shared(800, told=True)) == ""
    assert tidings.event_of(shared(600), troubles(700), client_told=True) == "account.failing"
