"""Decides who asks at the HTTP door, and whether the route's permission is theirs."""

from __future__ import annotations

from typing import Any, NoReturn

from aiohttp import web

from tidewarden.config.addresses import host_of_header, is_loopback
from tidewarden.config.rights import ALL
from tidewarden.errors import Denied, NoAuth
from tidewarden.server.access.peer import denied, peer_of
from tidewarden.server.access.required_rights import (
    ADMIN,
    Requirement,
    every,
    missing,
    missing_for,
)
from tidewarden.server.access.users import Users
from tidewarden.server.console import data_routes
from tidewarden.server.console import routes as console
from tidewarden.server.console.ended_logins import EndedLogins
from tidewarden.server.console.login_cookie import ENDED, LoginCookies
from tidewarden.server.console.same_origin import check_same_origin
from tidewarden.server.verbs.token import no_reader

from .caller import RIGHTS, USER
from .route import Route
from .routes import TABLES

ROUTES: dict[tuple[str, str], Route[Any]] = {}
for _table in (*TABLES, console.ROUTES, console.FILES, data_routes.ROUTES):
    ROUTES.update({(route.method, route.path): route for route in _table})
OPEN_PATHS = tuple(path for (_, path), route in ROUTES.items() if not route.verb)
OPEN_PREFIXES = ("/console/", "/v1/connect/")
"""
Paths below them are open: the console's pages, which hold no data, and its login; and those of
people in browsers who consent, where a link is the right.
"""
BY_PROGRAMS_ALONE = frozenset(
    {"T.GET", "T.MGET", "T.ANSWERS", "T.PUT", "T.CONNECT", "T.DEVICE", "P.PUT", "R.BACKUP"}
)
"""
These verbs answer secrets, or say where secrets go, which no page asks: a login of the console is
not enough for them.
"""
USER_PREFIXES = tuple(
    sorted({route.prefix for route in ROUTES.values() if route.permission.level == "user"})
)
"""Paths of tokens, which need a user although the door may be open to all."""


class Authorization:
    """Checks origin, user and rights of requests; ``users`` are those of both doors."""

    def __init__(self, users: Users, logins: LoginCookies, ended: EndedLogins) -> None:
        self._users = users
        self._logins = logins
        self._ended = ended

    def check_origin(self, request: web.Request) -> None:
        """
        Keep web pages in browsers from a door that asks for no password (DNS rebinding, CSRF).

        Raises: Denied.
        """
        if not self._users.open:
            return
        for name in ("Host", "Origin"):
            value = request.headers.get(name)
            if value is not None and not is_loopback(host_of_header(value)):
                raise Denied(
                    f"This door serves its own machine alone: the {name} header must be a loopback"
                    " address."
                )

    async def user_of(self, request: web.Request) -> str:
        """
        Return the user who asks; empty: no user is known, and none is needed.

        Raises: NoAuth: a user is needed. WrongPass. Denied: another site sent this.
        """
        if is_open(request):
            return ""
        header = request.headers.get("Authorization", "")
        if not header:
            name = self._logins.name(secure=request.secure)
            cookie = "" if self._users.open else request.cookies.get(name, "")
            if cookie:
                return await self._user_of_login(request, cookie)
            if self._users.open and not request.path.startswith(USER_PREFIXES):
                return ""
            raise NoAuth("Send Authorization: Bearer user:secret.")
        scheme, _, credentials = header.partition(" ")
        if scheme.lower() != "bearer" or not credentials.strip():
            raise NoAuth("Only Authorization: Bearer user:secret is understood.")
        return await self._authenticate(credentials.strip(), peer_of(request.transport))

    async def _user_of_login(self, request: web.Request, cookie: str) -> str:
        login = self._logins.login_of(cookie)
        check_same_origin(request)
        route = route_of(request)
        if route is not None and route.verb in BY_PROGRAMS_ALONE:
            raise Denied(
                "A login of the console shows no secrets, and says of none where it goes: send"
                " Authorization: Bearer user:secret."
            )
        if await self._ended.has(login.id):
            raise NoAuth(ENDED)
        return login.user

    async def _authenticate(self, credentials: str, peer: str) -> str:
        """Check ``user:secret``, or a secret alone, which may have a colon; returns the user."""
        user, colon, secret = credentials.partition(":")
        if not colon or not self._users.has(user):
            user, secret = "", credentials
        return await self._users.authenticate(user, secret, peer)

    def check_rights(self, request: web.Request, user: str) -> None:
        """
        Check that the user may ask for this route; its rights are the request's from then on.

        Raises: Denied. WrongPass: there is no such user any more.
        """
        request[USER], request[RIGHTS] = user, self._users.rights(user) if user else ALL
        resource = request.match_info.route.resource
        if not user or resource is None or is_open(request):
            return
        what = f"{method_of(request)} {resource.canonical}"
        route = route_of(request)
        permission = every(*ADMIN) if route is None else route.permission
        asked = () if route is None else route.arguments(request)
        if lacks := missing_for(request[RIGHTS], permission, (what.encode(), *asked)):
            self._deny(request, what, lacks)

    def check_right(self, request: web.Request, what: str, required: Requirement) -> None:
        """Check a right that the body of a request requires. Raises: Denied."""
        if lacks := missing(request[RIGHTS], [required]):
            self._deny(request, what, lacks)

    def deny_account(self, request: web.Request, account: str) -> Denied:
        """Note that one account among others is not the asker's to read; returns the error."""
        user = request[USER]
        error = no_reader(f"{request.method} {request.path}", account, user)
        self._users.deny(user, peer_of(request.transport), error)
        return error

    def _deny(self, request: web.Request, what: str, right: str) -> NoReturn:
        user = request[USER]
        error = denied(what, right, user)
        self._users.deny(user, peer_of(request.transport), error)
        raise error


def is_open(request: web.Request) -> bool:
    """Return whether everybody who can reach the port may ask for the path."""
    return request.path in OPEN_PATHS or request.path.startswith(OPEN_PREFIXES)


def route_of(request: web.Request) -> Route[Any] | None:
    """Return the row of the table that answers a request; None: there is none."""
    resource = request.match_info.route.resource
    return None if resource is None else ROUTES.get((method_of(request), resource.canonical))


def method_of(request: web.Request) -> str:
    """Return the method of the row that answers a request: GET's answers HEAD."""
    return "GET" if request.method == "HEAD" else request.method
