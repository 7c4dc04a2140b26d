"""The ways in which a consent in a browser can end, a word for each."""

from __future__ import annotations

from dataclasses import dataclass

CONNECTED = "connected"
PENDING = "pending"
"""
The provider has given a grant, and it is stored as soon as the store is back; or another node is
about to say how it ended.
"""


@dataclass(frozen=True, slots=True)
class PageText:
    """Says what a person reads, and with which status, where no application is to be told."""

    status: int
    text: str


ENDINGS = {
    CONNECTED: PageText(200, "The account is connected. You can close this window."),
    PENDING: PageText(
        202, "This takes a moment longer, and goes on by itself. You can close this window."
    ),
    "link_invalid": PageText(
        400, "This link is not one of ours, or was changed. Ask for a new one."
    ),
    "link_expired": PageText(410, "This link has expired. Ask for a new one."),
    "link_used": PageText(410, "This link has served its purpose. Ask for a new one."),
    "unknown_browser": PageText(
        400, "This sign-in was not begun in this browser, or too long ago. Open the link again."
    ),
    "expired": PageText(410, "This sign-in took too long. Open the link again."),
    "replayed": PageText(
        409, "This sign-in was answered before, and how it ended is not known. Open the link again."
    ),
    "denied": PageText(403, "Access was not granted."),
    "provider_error": PageText(502, "The provider refused the request. Its settings may be wrong."),
    "wrong_issuer": PageText(400, "The answer came from another provider than was asked."),
    "no_code": PageText(400, "The provider's answer had no code in it."),
    "unavailable": PageText(503, "The provider cannot be reached. Open the link again in a while."),
    "outcome_unknown": PageText(
        502, "The provider's answer was lost, so nothing was stored. Open the link again."
    ),
    "refused": PageText(502, "The provider did not accept its own code. Open the link again."),
    "scope_missing": PageText(403, "Less was allowed than is needed. Open the link again."),
    "no_refresh_token": PageText(502, "The provider gave no lasting access: no refresh token."),
    "wrong_id_token": PageText(502, "The provider's statement about you does not fit the request."),
    "other_subject": PageText(
        409, "You signed in as somebody else than the account belongs to. Open the link again."
    ),
    "not_stored": PageText(
        409, "What the provider gave does not fit this account, or it has changed meanwhile."
    ),
}
"""By word."""


class ConsentFailed(Exception):
    """
    Says that a consent came to nothing.

    Args:
        word: one of :data:`ENDINGS`.
        reason: for the log, without secrets; empty: the word says it.
    """

    def __init__(self, word: str, reason: str = "") -> None:
        super().__init__(reason or word)
        self.word = word
        self.reason = reason
