"""The routes of the console: its files, its login, and who asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web

from tidewarden import __version__
from tidewarden.config.rights import NAME_WORDS, QUEUE_WORDS
from tidewarden.errors import BadArg, Denied, NoAuth, Timeout, WrongPass
from tidewarden.server.access.peer import peer_of
from tidewarden.server.access.users import Users
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route

from .ended_logins import EndedLogins
from .login_cookie import LOGIN_S, LoginCookies
from .same_origin import check_same_origin
from .static_files import StaticFiles

LOGIN_BYTES = 4096
LOGIN_READ_S = 10.0


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """Names a user and shows its secret."""

    secret: Annotated[str, msgspec.Meta(max_length=1000, description="of the user")]
    user: Annotated[
        str, msgspec.Meta(max_length=200, description="empty: the only one there is")
    ] = ""


class Whoami(msgspec.Struct):
    """Says who asks, and what that user may do."""

    user: Annotated[str, msgspec.Meta(description="empty: nobody in particular")]
    rights: Annotated[tuple[str, ...], msgspec.Meta(description="as the configuration has them")]
    node: str
    version: str
    open: Annotated[
        bool, msgspec.Meta(description="nobody need log in, and tokens are closed to everybody")
    ]


class LoggedOut(msgspec.Struct):
    """Says that the login has ended, and the browser been told to forget it."""

    logged_out: bool = True
    everywhere: Annotated[
        bool,
        msgspec.Meta(description="false: at this node alone, for the store did not answer"),
    ] = True


class ConsoleRoutes:
    """
    Answers ``/console/login``, ``/console/logout`` and ``/v1/whoami``.

    ``user`` tells who sends a request, empty for nobody in particular.
    """

    def __init__(
        self,
        node: str,
        users: Users,
        logins: LoginCookies,
        ended: EndedLogins,
        user: Callable[[web.Request], str],
    ) -> None:
        self._node = node
        self._users = users
        self._logins = logins
        self._ended = ended
        self._user = user

    async def login(self, request: web.Request) -> web.Response:
        """Log in to the console: a right secret is answered with a cookie."""
        check_same_origin(request)
        if self._users.open:
            raise BadArg("No users are configured: the console needs no login here.")
        asked = await _login_of(request)
        user = await self._users.authenticate(asked.user, asked.secret, peer_of(request.transport))
        response = respond(msgspec.to_builtins(self._shown(user)))
        self._set(request, response, self._logins.issue(user), LOGIN_S)
        return response

    async def logout(self, request: web.Request) -> web.Response:
        """End the login at every node, and have the browser forget it."""
        check_same_origin(request)
        everywhere = True
        if cookie := request.cookies.get(self._logins.name(secure=request.secure), ""):
            with contextlib.suppress(NoAuth):  # It has ended already.
                login = self._logins.login_of(cookie)
                everywhere = await self._ended.end(login.id, login.ends_s)
        response = respond(msgspec.to_builtins(LoggedOut(everywhere=everywhere)))
        self._set(request, response, "", 0)
        return response

    async def whoami(self, request: web.Request) -> web.Response:
        """Say who asks, and what they may do."""
        return respond(msgspec.to_builtins(self._shown(self._user(request))))

    def _set(self, request: web.Request, response: web.Response, value: str, seconds: int) -> None:
        response.set_cookie(
            self._logins.name(secure=request.secure),
            value,
            max_age=seconds,
            path="/",
            secure=request.secure,
            httponly=True,
            samesite="Strict",
        )

    def _shown(self, user: str) -> Whoami:
        rights = self._users.written(user) if user else (*QUEUE_WORDS, *NAME_WORDS)
        return Whoami(user, rights, self._node, __version__, self._users.open)


async def _login_of(request: web.Request) -> Login:
    """Read the body of a user who is not known yet: a short one, whose length is announced."""
    if not 0 < (request.content_length or 0) <= LOGIN_BYTES:
        raise BadArg(f"A login is a JSON object of at most {LOGIN_BYTES} bytes.")
    try:
        async with asyncio.timeout(LOGIN_READ_S):
            body = await request.read()
    except TimeoutError:
        raise Timeout(f"The body did not come within {LOGIN_READ_S:g} s.") from None
    try:
        return msgspec.json.decode(body, type=Login)
    except msgspec.ValidationError as error:  # it names the field, and quotes no value
        raise BadArg(f"A login is {{user, secret}}: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadArg("A login is a JSON object; this cannot be read as JSON.") from None


FILES = (
    Route("GET", "/", "", StaticFiles.page, answer=bytes, media="text/html", described=False),
    Route(
        "GET",
        "/console/{file}",
        "",
        StaticFiles.file,
        answer=bytes,
        media="application/octet-stream",
        described=False,
    ),
)
ROUTES = (
    Route(
        "POST",
        "/console/login",
        "",
        ConsoleRoutes.login,
        body=Login,
        answer=Whoami,
        errors=(BadArg, Denied, WrongPass, Timeout),
    ),
    Route(
        "POST",
        "/console/logout",
        "",
        ConsoleRoutes.logout,
        answer=LoggedOut,
        errors=(Denied,),
    ),
    Route("GET", "/v1/whoami", "PING", ConsoleRoutes.whoami, answer=Whoami, errors=(NoAuth,)),
)
