"""
Where the refreshers say what has become of an account: which of it is an event, and what it means for companion tasks.

Every method returns at once and raises nothing. ``before`` are the troubles that the account had when its refresh began.
"""

from __future__ import annotations

from typing import Any

from .companions import Companions
from .events import Events
from .rows import Troubles


class Tidings:
    """Of one node."""

    def __init__(self, events: Events, companions: Companions, failing_s: float) -> None:
        """``failing_s``: how long an account must have failed to be told of, seconds."""
        self._events = events
        self._companions = companions
        self._failing_ms = int(failing_s * 1000)

    def refreshed(self, provider: str, account: str, before: Troubles | None) -> None:
        """A new pair is stored. Told if it was told that the account fails or is dead."""
        self._companions.fresh(f"{provider}/{account}")
        if before is not None and (before.dead or self._long(before, before.last_ms)):
            self._events.emit("account.recovered", provider, account, **_what(before))

    def failed(self, provider: str, account: str, before: Troubles, now: Troubles) -> None:
        """A refresh failed, and ``now`` is noted. Told once: when it is dead, and when it has failed for long."""
        if now.dead and not before.dead:
            self._companions.over(f"{provider}/{account}")
            self._events.emit("account.dead", provider, account, **_what(now))
        elif not now.dead and self._long(now, now.last_ms) and not self._long(before, before.last_ms):
            self._events.emit("account.failing", provider, account, next_ms=now.next_ms, **_what(now))

    def granted(self, provider: str, account: str, before: Troubles | None, *, living: bool) -> None:
        """A new grant was put. ``living``: with an access token."""
        if living:
            self.refreshed(provider, account, before)
        elif before is not None and before.dead:
            self._events.emit("account.recovered", provider, account, **_what(before))

    def deleted(self, provider: str, account: str) -> None:
        """Somebody has deleted the account."""
        self._companions.over(f"{provider}/{account}")

    def held(self, provider: str, reason: str, message: str) -> None:
        """A breaker has opened: the accounts of this provider's client wait."""
        self._events.emit("provider.breaker_open", provider, error=reason, message=message)

    def released(self, provider: str) -> None:
        """It is closed again."""
        self._events.emit("provider.breaker_closed", provider)

    def silent(self, provider: str, node: str, error: str, message: str) -> None:
        """That node gets no answer at all, and asks rarely now."""
        self._events.emit("provider.silent", provider, node=node, error=error, message=message)

    def answers(self, provider: str, node: str) -> None:
        """That node is answered again."""
        self._events.emit("provider.answers", provider, node=node)

    def doubted(self, provider: str, share: float) -> None:
        """This node sees so many refresh tokens refused (``share`` of the latest, 0 to 1) that it declares no account dead."""
        self._events.emit("provider.quarantine_begun", provider, refused_share=round(share, 3))

    def trusted(self, provider: str) -> None:
        """It sees no more refused than usual."""
        self._events.emit("provider.quarantine_over", provider)

    def _long(self, troubles: Troubles, now_ms: int) -> bool:
        return troubles.tries > 0 and now_ms - troubles.first_ms >= self._failing_ms


def _what(troubles: Troubles) -> dict[str, Any]:
    return {
        "error": troubles.outcome,
        "message": troubles.message,
        "tries": troubles.tries,
        "since_ms": troubles.first_ms,
    }
