"""
Every refresh is refused for a while, wrongly, by each provider in other words than invalid_grant.
"""

from __future__ import annotations

from .all_refused import AllRefused
from .provider import Book, Grant, Reply, oauth_error
from .scenario import Rule

WORDS = {
    "scope": oauth_error(400, "invalid_scope"),
    "rejected": oauth_error(400, "invalid_request"),
    "bare": Reply(401, {}, kind="401 bare"),
    "page": Reply(403, "<html>Access denied</html>", kind="403 page"),
}


class RefusedByOtherWords(AllRefused):
    """
    Four providers refuse all for 90 min: invalid_scope, invalid_request, a bare 401, an HTML page.
    """

    rule = Rule(
        "every class of answers that may end a grant is evidence of an incident",
        (
            (
                "config/error_classes.py",
                'name="invalid_scope",\n        scope="account",\n        kind="refused",',
                'name="invalid_scope",\n        scope="account",\n        kind="other",',
            ),
        ),
    )
    providers: tuple[str, ...] = tuple(WORDS)

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return WORDS[book.name] if self.refusing else None
