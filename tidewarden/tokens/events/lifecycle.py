"""
Turns refresh outcomes into account events and companion-task updates.

Every method returns at once and raises nothing. What happens is written down by the scripts that do
it (:mod:`.outbox`): here it is only said which of it is an event, and where one lies.
"""

from __future__ import annotations

from tidewarden.tokens.accounts.account_record import RefreshTroubles

from .companions import Companions
from .events import ENDS
from .outbox import Outbox


class AccountLifecycle:
    """Notes the outcomes of one node's refreshes as events and companion updates."""

    def __init__(self, outbox: Outbox, companions: Companions, failing_s: float) -> None:
        """Report an account only when it has failed for ``failing_s`` seconds."""
        self._outbox = outbox
        self._companions = companions
        self._failing_ms = int(failing_s * 1000)

    def refreshed(self, provider: str, account: str, *, recovered: bool) -> None:
        """
        Note that a new pair is stored.

        ``recovered``: an event said that the account fails, and its recovery is to be told now.
        """
        self._companions.fresh(f"{provider}/{account}")
        if recovered:
            self._outbox.look(provider, account)

    def event_of(
        self, before: RefreshTroubles, now: RefreshTroubles, *, client_told: bool = False
    ) -> str:
        """
        Return the event that a failed refresh is, or none.

        There is one when the account is given up, and when it has failed for long: because of
        itself, or with others of its client while nothing is said of that (``client_told``).

        ``before`` are the troubles that the account had when its refresh began.
        """
        if now.given_up:
            return "" if _end(before) == _end(now) else _end(now)
        if now.told or not self._long(now) or (before.tries and self._long(before)):
            return ""
        return "account.failing" if now.tries or not client_told else ""

    def failed(self, provider: str, account: str, event: str) -> None:
        """
        Note a failed refresh that the store knows of; ``event``: the event to tell; empty: none.
        """
        if event in ENDS:
            self._companions.over(f"{provider}/{account}")
        if event:
            self._outbox.look(provider, account)

    def granted(self, provider: str, account: str, *, living: bool, recovered: bool) -> None:
        """
        Note that a new grant was put.

        ``living``: with an access token; ``recovered``: there is something of it to tell.
        """
        if living:
            self._companions.fresh(f"{provider}/{account}")
        if recovered:
            self._outbox.look(provider, account)

    def deleted(self, provider: str, account: str) -> None:
        """Note that the account was deleted."""
        self._companions.over(f"{provider}/{account}")

    def of_provider(self, provider: str) -> None:
        """
        Note an event about a provider's client.

        It concerns the client's breaker, the share of its refusals, or whether the provider
        answers.
        """
        self._outbox.look(provider)

    def _long(self, troubles: RefreshTroubles) -> bool:
        return troubles.last_ms - troubles.first_ms >= self._failing_ms


def _end(troubles: RefreshTroubles) -> str:
    """Name the event that the end of such troubles is; empty: they have not ended."""
    return "account.dead" if troubles.dead else "account.stopped" if troubles.stopped else ""
