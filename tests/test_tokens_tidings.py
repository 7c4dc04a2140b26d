"""Which of what becomes of accounts is an event: each trouble is told once, and its end."""

from __future__ import annotations

from typing import Any

from tidewarden.tokens.rows import Troubles
from tidewarden.tokens.tidings import Tidings


class Heard:
    """Events and companions in one."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def emit(self, kind: str, provider: str, account: str = "", **details: Any) -> None:
        self.calls.append((kind, provider, account))

    def fresh(self, account: str) -> None:
        self.calls.append(("fresh", account))

    def over(self, account: str) -> None:
        self.calls.append(("over", account))

    def taken(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


def troubles(last_s: int, *, dead: bool = False) -> Troubles:
    return Troubles(tries=1, first_ms=1000, last_ms=1000 + last_s * 1000, outcome="x", dead=dead)


def test_each_trouble_is_told_once_and_its_end() -> None:
    heard = Heard()
    tidings = Tidings(heard, heard, 600)  # type: ignore[arg-type]
    tidings.failed("p", "a", Troubles(), troubles(0))
    tidings.failed("p", "a", troubles(0), troubles(599))
    tidings.refreshed("p", "a", troubles(599))
    assert heard.taken() == [("fresh", "p/a")]
    tidings.failed("p", "a", troubles(599), troubles(600))
    tidings.failed("p", "a", troubles(600), troubles(700))
    assert heard.taken() == [("account.failing", "p", "a")]
    tidings.failed("p", "a", troubles(700), troubles(800, dead=True))
    tidings.failed("p", "a", troubles(800, dead=True), troubles(900, dead=True))
    assert heard.taken() == [("over", "p/a"), ("account.dead", "p", "a")]
    tidings.granted("p", "a", troubles(900, dead=True), living=False)
    assert heard.taken() == [("account.recovered", "p", "a")]
    tidings.granted("p", "a", None, living=False)
    tidings.granted("p", "a", None, living=True)
    tidings.refreshed("p", "a", None)
    tidings.refreshed("p", "a", Troubles())
    assert heard.taken() == [("fresh", "p/a")] * 3
    tidings.refreshed("p", "a", troubles(700))
    tidings.deleted("p", "a")
    assert heard.taken() == [("fresh", "p/a"), ("account.recovered", "p", "a"), ("over", "p/a")]
    tidings.held("p", "invalid_client", "HTTP 401")
    tidings.released("p")
    assert heard.taken() == [("provider.breaker_open", "p", ""), ("provider.breaker_closed", "p", "")]
    tidings.silent("p", "n0", "refused", "no connection")
    tidings.answers("p", "n0")
    assert heard.taken() == [("provider.silent", "p", ""), ("provider.answers", "p", "")]
    tidings.doubted("p", 0.5)
    tidings.trusted("p")
    assert heard.taken() == [("provider.quarantine_begun", "p", ""), ("provider.quarantine_over", "p", "")]
