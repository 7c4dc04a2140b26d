"""
Runs the HTTP door: its routes, their authorization, and the notes of answered requests.

``/health/*`` and ``/leader`` are open to everybody who can reach the port. Other paths want
``Authorization: Bearer user:secret`` (or ``Bearer secret`` where there is one user) as soon as
users are configured, and the routes of tokens and events always do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tidewarden.clock import Clock
from tidewarden.config.load import Config, is_loopback
from tidewarden.config.rights import ALL, Rights
from tidewarden.config.tls import renew, server_context
from tidewarden.errors import BadArg, Error, Internal, Timeout, TooBig
from tidewarden.server.access.admission import AdmissionControl
from tidewarden.server.access.peer import host_of, peer_of
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.users import Users
from tidewarden.server.answered_requests import UNKNOWN, AnsweredRequests
from tidewarden.server.console import data_routes
from tidewarden.server.console import routes as console
from tidewarden.server.console.ended_logins import EndedLogins
from tidewarden.server.console.login_cookie import LoginCookies
from tidewarden.server.console.static_files import StaticFiles
from tidewarden.server.services import Services
from tidewarden.user_limits import ACTING, UserLimits

from .auditing import HttpAudit
from .authorization import ROUTES, Authorization, is_open, route_of
from .caller import RIGHTS, USER
from .listener import HttpListener, HttpPeer
from .long_polls import LongPolls
from .openapi.document import document
from .params import unpacked
from .responses import FAILED, nothing_at, problem
from .route import WAITS, add_routes, arguments_of
from .routes import (
    audit,
    buried,
    cluster,
    connect,
    consumers,
    description,
    events,
    locks,
    node,
    providers,
    queues,
    schedules,
    sessions,
    tasks,
    tokens,
    topics,
    traffic,
)
from .routes.node import NodeRoutes, Stats, fine

log = logging.getLogger("tidewarden.server")

BODY_S = 30.0  # longest that a request's body may take to come in, however slowly
INTERNAL_BYTES = 4096
Inner = Callable[[bytes], bytes | Awaitable[bytes | None] | None]
LineOpener = Callable[[web.WebSocketResponse, Callable[[], None]], Awaitable[None]]
LINE_BYTES_MAX = 65_536
"""The longest message of another node on a line, and of a stranger that has yet to prove itself."""
LINE_ALIVE_S, LINE_CLOSE_S = 2.0, 1.0
"""
A silent line asks so often whether the other end is there; and a line that is closed waits so long
for the other end to do so.
"""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """
    Serves the HTTP door of one node.

    Args:
        config: listens on ``node.host`` at ``node.http_port``.
        services: the rooms that answer.
        clock: for the delay after a wrong secret.
        users: shared with the RESP door; made from the configuration when absent.
        admission: bounds unauthenticated peers; likewise.
        alive: why ``/health/live`` should say 503, or ``""``: asked per request, must not block.
        ready: the same for ``/health/ready``.
        warning: what an operator should look at all the same; shown there.
        internal: paths on which other nodes ask; each takes a body and answers it, or None where
            the body does not prove to be of a node.
        lines: paths on which other nodes open lines of bytes; each serves one to its end, and calls
            what it is given once it knows that it is a node which asked.
        stats: for ``/metrics``, a part's name and its ``stats``; queues and tokens are asked
            anyway.
        connections_max: fewer than the limits say, where the process may open fewer files.
        login_key: of the console's logins; one of this process alone when absent.
        ended_logins: which logins were ended; likewise.
    """

    def __init__(
        self,
        config: Config,
        services: Services,
        clock: Clock,
        users: Users | None = None,
        *,
        admission: AdmissionControl | None = None,
        alive: Callable[[], str] = fine,
        ready: Callable[[], str] = fine,
        warning: Callable[[], str] = fine,
        stats: Mapping[str, Stats] | None = None,
        internal: Mapping[str, Inner] | None = None,
        lines: Mapping[str, LineOpener] | None = None,
        connections_max: int | None = None,
        login_key: bytes | None = None,
        ended_logins: EndedLogins | None = None,
    ) -> None:
        self._config = config
        self._services = services
        self._tokens = services.tokens
        self._schedules = services.schedules
        self._traffic = services.traffic_of_cluster
        self._clock = clock
        self._internal = dict(internal or {})
        self._lines = dict(lines or {})
        loopback = is_loopback(config.node.host)
        self._users = users or Users(config.users, clock, loopback=loopback)
        logins = LoginCookies(login_key or os.urandom(32), self._users, clock)
        ended = ended_logins or EndedLogins(clock)
        self._authorization = Authorization(self._users, logins, ended)
        self._console = console.ConsoleRoutes(
            config.node.name, self._users, logins, ended, lambda request: request[USER]
        )
        self._audit = HttpAudit(services.audit, ROUTES)
        self._data = (
            None
            if services.figures is None
            else data_routes.DataRoutes(
                config.cluster.name,
                services.figures,
                services.queues,
                services.tokens,
                clock,
                lambda request: request[RIGHTS],
            )
        )
        self._node_routes = NodeRoutes(
            services,
            clock,
            _rights,
            alive=alive,
            ready=ready,
            warning=warning,
            stats={"http": self._stats, **(stats or {})},
        )
        self._admission = AdmissionControl(clock) if admission is None else admission
        self._limits = services.limits or UserLimits(config)
        if connections_max is not None:
            self._limits.bound_http(connections_max)
        self._long_polls = LongPolls(self._limits)
        self._open_requests = OpenRequests()
        self._answered = AnsweredRequests("http", services.traffic)
        self._listener: HttpListener | None = None
        self._tls: ssl.SSLContext | None = None

    async def start(self) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        app = web.Application(
            middlewares=[self._guard], client_max_size=self._config.limits.request_bytes
        )
        app.on_response_prepare.append(self._sign)
        add_routes(app.router, node.ROUTES, self._node_routes)
        describing = description.DescriptionRoutes(lambda: document(ROUTES.values()))
        add_routes(app.router, description.ROUTES, describing)
        add_routes(app.router, console.ROUTES, self._console)
        add_routes(app.router, console.FILES, StaticFiles())
        if self._data is not None:
            add_routes(app.router, data_routes.ROUTES, self._data)
        for path in self._internal:
            app.router.add_post(path, self._ask_internal)
        for path in self._lines:
            app.router.add_get(path, self._open_line)
        self._add_queues(app.router)
        check = self._authorization.check_right
        if self._tokens is not None:
            of_tokens = tokens.TokenRoutes(
                self._tokens,
                self._long_polls,
                self._config.limits.batch_max,
                _rights,
                self._authorization.deny_account,
                lambda request: self._audit.reader(request[USER]),
            )
            add_routes(app.router, tokens.ROUTES, of_tokens)
            of_browsers = connect.ConnectRoutes(self._tokens.connecting, self._services.audit)
            add_routes(app.router, connect.ROUTES, of_browsers)
            of_providers = providers.ProviderRoutes(self._tokens.stored_providers, _rights)
            add_routes(app.router, providers.ROUTES, of_providers)
            of_events = events.EventRoutes(
                self._tokens.events, self._clock, self._long_polls, _rights
            )
            add_routes(app.router, events.ROUTES, of_events)
        if self._schedules is not None:
            of_schedules = schedules.ScheduleRoutes(self._schedules, check, _rights)
            add_routes(app.router, schedules.ROUTES, of_schedules)
        if self._traffic is not None:
            of_traffic = traffic.TrafficRoutes(self._traffic, self._clock, self._long_polls)
            add_routes(app.router, traffic.ROUTES, of_traffic)
        add_routes(app.router, audit.ROUTES, audit.AuditRoutes(self._services.audit))
        mismatches = ProtocolMismatch("HTTP", self._clock)
        self._listener = HttpListener(
            app,
            self._limits,
            self._config.limits.line_bytes,
            mismatches,
            self._admission,
            lambda: self._users.open,
        )
        at = self._config.node
        self._tls = server_context(at.tls_cert, at.tls_key)
        await self._listener.start(at.host, at.http_port, self._tls)
        log.info("HTTP door open", extra={"host": at.host, "port": self.port})

    def _add_queues(self, router: web.UrlDispatcher) -> None:
        """Add the routes of queues, and all others that every node has."""
        polls, check = self._long_polls, self._authorization.check_right
        services, at = self._services, self._services.queues
        add_routes(router, cluster.ROUTES, cluster.ClusterRoutes(services))
        add_routes(router, queues.ROUTES, queues.QueueRoutes(at, _rights))
        add_routes(router, tasks.ROUTES, tasks.TaskRoutes(at, polls, check))
        add_routes(router, buried.ROUTES, buried.BuriedRoutes(at, check))
        add_routes(router, topics.ROUTES, topics.TopicRoutes(at, _rights))
        known = services.consumers_of_cluster
        add_routes(router, sessions.ROUTES, sessions.SessionRoutes(at, known, _rights))
        add_routes(router, consumers.ROUTES, consumers.ConsumerRoutes(services, _rights))
        if services.locks is not None:
            of_locks = locks.LockRoutes(services, services.locks, at, polls, _rights)
            add_routes(router, locks.ROUTES, of_locks)

    def reload(self, users: Collection[str] = ()) -> None:
        """Renew the certificate from its files, and hang up on readers who are one of ``users``."""
        self._open_requests.cut_off([*users, *(() if self._users.open else ("",))])
        if self._tls is not None:
            renew(self._tls, self._config.node.tls_cert, self._config.node.tls_key)

    def _stats(self) -> Mapping[str, Any]:
        told = self._answered.stats()
        if self._listener is None:
            return told
        return {**self._listener.stats(), "waiting": self._long_polls.waiting, **told}

    async def metrics_text(self) -> bytes:
        """Return the answer of ``/metrics`` to a user who may see all of it."""
        return b"".join(await self._node_routes.metrics_text(ALL))

    @property
    def port(self) -> int:
        """Return the TCP port that the door listens on."""
        assert self._listener is not None
        return self._listener.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no new connection; answer requests under way for at most ``grace_s`` seconds."""
        if self._listener is not None:
            await self._listener.stop(grace_s)
            await self._services.queues.unbound.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, and note it unless another node asked."""
        if request.path in self._internal or request.path in self._lines:
            return await handler(request)
        began = self._clock.monotonic()
        response = await self._answer(request, handler)
        self._note(request, response, self._clock.monotonic() - began)
        return response

    def _note(self, request: web.Request, response: web.StreamResponse, seconds: float) -> None:
        streams = not isinstance(response, web.Response)
        route = route_of(request)
        self._answered.note(
            request.get(USER) or None,
            UNKNOWN if route is None else route.counted or route.verb or route.path,
            arguments_of(request)[0],
            host_of(peer_of(request.transport)),
            request.content_length or 0,
            (response.body_length if streams else response.content_length) or 0,
            response.get(FAILED, ""),
            seconds,
            streams or request.get(WAITS, False),
        )

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request in and answer it, every error as JSON."""
        try:
            self._authorization.check_origin(request)
            if self._listener is not None:
                self._listener.admit(request)
            user = await self._authorization.user_of(request)
            ACTING.set(user)
            if self._listener is not None:
                self._listener.belong(request, user)
            if user and isinstance(request.protocol, HttpPeer):
                request.protocol.authenticated()
            self._authorization.check_rights(request, user)
            # Users may have been read anew while the body came in.
            if await self._read_body(request):
                self._authorization.check_rights(request, user)
            with self._open_requests.by(request, user, reads=changes_nothing(request)):
                return await self._audit.answer(request, user, handler)
        except Error as error:
            return problem(error)
        except web.HTTPRequestEntityTooLarge:
            return problem(TooBig(f"A body may have {self._config.limits.request_bytes} bytes."))
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            fault = BadArg(f"{request.method} is not served here; {allowed} is.")
            return problem(fault, status=405, headers={"Allow": allowed})
        except web.HTTPNotFound:
            return problem(nothing_at(request, self._internal))
        except web.HTTPException as error:
            return problem(BadArg(error.reason), status=error.status)
        except Exception:
            log.exception("defect in %s %s", request.method, request.match_info.route.resource)
            return problem(Internal("A defect of the server; its log has the trace."))

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """
        Set the headers of every answer.

        aiohttp's own ``Server`` would tell strangers which versions of which programs are here.
        """
        response.headers["Server"] = "tidewarden"
        # A payload is no page, whatever a browser finds in it.
        response.headers["X-Content-Type-Options"] = "nosniff"
        if self._listener is not None and self._listener.is_last(request):
            response.headers["Connection"] = "close"
            response.force_close()

    async def _read_body(self, request: web.Request) -> bool:
        """
        Read the whole body, where handlers find it; returns whether there is one.

        Raises: TooBig; Timeout: it does not come within :data:`BODY_S`; BadArg: its encoding.
        """
        if is_open(request) or not request.can_read_body:
            return False
        most = self._config.limits.request_bytes
        if (request.content_length or 0) > most:
            raise TooBig(f"A body may have {most} bytes; {request.content_length} are announced.")
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
        except TimeoutError:
            raise Timeout(f"The body did not come within {BODY_S:g} s.") from None
        except (RuntimeError, ConnectionError):  # aiohttp's, where the connection has ended
            if request.transport is not None:
                raise
            raise Timeout("The connection ended before the body came.") from None
        request._read_bytes = unpacked(body, request.headers.get("Content-Encoding", ""), most)  # noqa: SLF001  read() gives it
        return True

    async def _ask_internal(self, request: web.Request) -> web.Response:
        """Answer another node, which proves itself in the body; other callers are told nothing."""
        if not 0 < (request.content_length or 0) <= INTERNAL_BYTES:
            return web.Response(status=403)
        try:
            async with asyncio.timeout(BODY_S):
                reply = self._internal[request.path](await request.read())
                if isinstance(reply, Awaitable):
                    reply = await reply
        except TimeoutError:
            return web.Response(status=408)
        return web.Response(status=403) if reply is None else web.Response(body=reply)

    async def _open_line(self, request: web.Request) -> web.StreamResponse:
        """Serve a line of another node, which proves itself on it."""
        line = web.WebSocketResponse(
            heartbeat=LINE_ALIVE_S,
            timeout=LINE_CLOSE_S,
            compress=False,
            max_msg_size=LINE_BYTES_MAX,
        )
        if not line.can_prepare(request).ok:
            return web.Response(status=403)
        try:
            await line.prepare(request)
        except ConnectionResetError:  # The other node has gone meanwhile.
            return web.Response()

        def known() -> None:
            if isinstance(request.protocol, HttpPeer):
                request.protocol.authenticated()

        await self._lines[request.path](line, known)
        await line.close()
        return line


class OpenRequests:
    """Keeps the requests under way that change nothing, each with its user (empty: none)."""

    def __init__(self) -> None:
        # by the request's identity: it has no hash
        self._users: dict[int, tuple[web.Request, str]] = {}

    @contextmanager
    def by(self, request: web.Request, user: str, *, reads: bool) -> Iterator[None]:
        """Keep ``request`` of ``user`` within the block, if it changes nothing."""
        if not reads:
            yield
            return
        self._users[id(request)] = request, user
        try:
            yield
        finally:
            del self._users[id(request)]

    def cut_off(self, users: Collection[str]) -> None:
        """Hang up on these users' requests, which were let in under other rights than now."""
        for request, user in list(self._users.values()):
            if user in users and request.transport is not None:
                request.transport.abort()


def changes_nothing(request: web.Request) -> bool:
    """Return whether a request may be cut off at any time."""
    route = route_of(request)
    if request.method in ("GET", "HEAD"):
        return route is None or not route.changes
    return route is not None and route.reads


def _rights(request: web.Request) -> Rights:
    return request[RIGHTS]
