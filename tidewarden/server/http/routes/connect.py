"""
Leads people in browsers to a provider's consent, and receives them when they come back.

These paths are open to everybody: a link, which only a user can make, is the right to them, and
what comes back is believed only from the browser that was sent there.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from tidewarden.config.return_addresses import with_result
from tidewarden.errors import BadArg, Error
from tidewarden.server.access.peer import peer_of
from tidewarden.server.audit.audit_log import AuditLog
from tidewarden.server.http.responses import FAILED
from tidewarden.server.http.route import Route, whole
from tidewarden.tokens.connect.connecting import VISIT_S, Arrival, Connecting
from tidewarden.tokens.connect.outcomes import CONNECTED, ENDINGS, PENDING, ConsentFailed

log = logging.getLogger("tidewarden.server")

COOKIE = "tidewarden-connect-"
STATE_CHARS = 16
"""Of a state, in the name of its cookie, so that two windows do not take each other's."""
_BEGINNING = re.compile(r"[A-Za-z0-9_-]{16}")
COOKIES_MAX = 4
"""A browser keeps no more of ours: all of them together have to fit into the head of a request."""
GUARDS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
TITLES = {200: "Connected", 202: "Not connected yet"}
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title></head>
<body><h1>{title}</h1><p>{text}</p></body>
</html>
"""


class ConnectRoutes:
    """Answers ``/v1/connect/…``; ``audit`` notes accounts that were connected."""

    def __init__(self, connecting: Connecting, audit: AuditLog | None) -> None:
        self._connecting = connecting
        self._audit = audit
        parts = urlsplit(connecting.settings.url)
        self._secure = parts.scheme == "https"
        self._prefix = f"{'__Secure-' if self._secure else ''}{COOKIE}"
        self._path = f"{parts.path.rstrip('/')}/v1/connect"

    async def begin(self, request: web.Request) -> web.Response:
        """Send a browser that opens a link to the provider."""
        account = f"{request.match_info['provider']}/{request.match_info['account']}"
        try:
            departure = await self._connecting.begin(account, request.query.get("link", ""))
        except ConsentFailed as failed:
            return _failed(failed)
        except Error as error:
            return _unavailable(error)
        response = _redirect(departure.location)
        # Browsers send those first that they have had the longest (RFC 6265, 5.4).
        others = [name for name in request.cookies if self._is_ours(name)]
        for name in others[: max(0, len(others) - COOKIES_MAX + 1)]:
            self._set(response, name, "", 0)
        self._set(response, self._name(departure.state), departure.visit, VISIT_S)
        return response

    async def finish(self, request: web.Request) -> web.Response:
        """Receive a browser that comes back from a provider, and send it on to the application."""
        try:
            arrival = await whole(self._finished(request))
        except ConsentFailed as failed:
            return _failed(failed)
        except Error as error:
            return _unavailable(error)
        if arrival.return_to:
            response = _redirect(with_result(arrival.return_to, _result(arrival)))
        else:
            response = _page(arrival.word)
        if arrival.word != PENDING:  # else the browser may ask how it ended
            self._set(response, self._name(request.query.get("state", "")), "", 0)
        return response

    async def _finished(self, request: web.Request) -> Arrival:
        """Answer the browser, and note an account that was connected."""
        peer = peer_of(request.transport)  # it may be gone in the end
        arrival = await self._connecting.finish(
            request.query.items(),
            lambda state: request.cookies.get(self._name(state), ""),
            request.match_info.get("provider", ""),
        )
        if self._audit is not None and arrival.fresh and arrival.word in (CONNECTED, PENDING):
            self._audit.account(arrival.user, peer, "T.CONNECT", arrival.account, arrival.word)
        return arrival

    def _is_ours(self, name: str) -> bool:
        rest = name.removeprefix(self._prefix)
        return rest != name and _BEGINNING.fullmatch(rest) is not None

    def _name(self, state: str) -> str:
        return f"{self._prefix}{state[:STATE_CHARS]}"

    def _set(self, response: web.Response, name: str, value: str, seconds: int) -> None:
        """Have the browser keep a visit for so many seconds; 0: no longer."""
        # Lax: the way back is a link of another site's, as browsers see it.
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=self._path,
            secure=self._secure,
            httponly=True,
            samesite="Lax",
        )


def _result(arrival: Arrival) -> dict[str, str]:
    """Return what the application is told; it proves nothing, for anybody can call its address."""
    told = {"result": arrival.word, "account": arrival.account}
    if arrival.word not in (CONNECTED, PENDING):
        told |= {"result": "failed", "error": arrival.word}
    return told


def _redirect(location: str) -> web.Response:
    return web.Response(status=302, headers={**GUARDS, "Location": location})


def _failed(failed: ConsentFailed) -> web.Response:
    """Return a page for a consent that cannot go on, and say why in the log."""
    # A stranger's request is not told there, and has no reason or this word.
    if failed.reason and failed.word != "unknown_browser":
        log.warning("a consent cannot go on: %s (%s)", failed.word, failed.reason)
    return _page(failed.word)


def _page(word: str) -> web.Response:
    """Return a page that says how a consent ended."""
    ending = ENDINGS.get(word, ENDINGS["replayed"])  # a later version may have noted the word
    title = TITLES.get(ending.status, "Not connected")
    text = PAGE.format(title=title, text=html.escape(ending.text))
    response = web.Response(
        status=ending.status, text=text, content_type="text/html", headers=GUARDS
    )
    if ending.status not in TITLES:
        response[FAILED] = BadArg.code
    return response


def _unavailable(error: Error) -> web.Response:
    """Return a page for an error of ours; the browser may ask again."""
    log.warning("a consent waits: %s %s", error.code, error)
    text = "Our store does not answer. Reload this page in a moment."
    page = PAGE.format(title="Not connected yet", text=text)
    response = web.Response(
        status=error.http_status, text=page, content_type="text/html", headers=GUARDS
    )
    response[FAILED] = error.code
    return response


def _of_browsers(
    path: str, handler: Callable[[ConnectRoutes, web.Request], Awaitable[web.Response]]
) -> Route[ConnectRoutes]:
    """Return a route that a browser follows: no reload cuts it off, and no account is shown."""
    return Route(
        "GET",
        path,
        "",
        handler,
        changes=True,
        head=False,
        answer=bytes,
        media="text/html",
        counted="T.CONNECT",
        described=False,
    )


ROUTES = (
    _of_browsers("/v1/connect/callback", ConnectRoutes.finish),
    _of_browsers("/v1/connect/put-callback/{provider}", ConnectRoutes.finish),
    _of_browsers("/v1/connect/{provider}/{account}", ConnectRoutes.begin),
)
