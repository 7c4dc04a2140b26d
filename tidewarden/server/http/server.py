"""
The HTTP door: health for load balancers, metrics, status and the token routes.

``/health/*`` and ``/leader`` are open to everybody who can reach the port; the rest wants
``Authorization: Bearer user:secret`` (or ``Bearer secret`` where there is one user) as soon as
users are configured, and the routes of tokens and events always.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NoReturn

from aiohttp import web

from tidewarden.clock import Clock
from tidewarden.config.load import Config, is_loopback
from tidewarden.config.permissions import ALL, Rights
from tidewarden.config.tls import renew, server_context
from tidewarden.errors import BadArg, Denied, Error, Internal, NoAuth, Timeout, TooBig
from tidewarden.server.access.lobby import Lobby
from tidewarden.server.access.peer import denied, peer_of
from tidewarden.server.access.permissions import ROUTES, Demand, lacking, lacking_for
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.users import Users
from tidewarden.server.parts import Cluster, Queues, Schedules, Tokens

from . import metrics
from .events import EventRoutes
from .listener import HttpListener, HttpPeer
from .open_requests import OpenRequests
from .responses import nothing_at, problem, respond
from .schedules import ScheduleRoutes
from .tokens import TokenRoutes

log = logging.getLogger("tidewarden.server")

RIGHTS: web.RequestKey[Rights] = web.RequestKey("rights", Rights)
USER: web.RequestKey[str] = web.RequestKey("user", str)
BODY_S = 30.0  # longest that a request's body may take to come in, however slowly
INTERNAL_BYTES = 4096
NAMED = ("/v1/tokens", "/v1/accounts", "/v1/answers", "/v1/providers", "/v1/events")
"""
Where what is asked for is of tokens, and needs a user also where nothing else does: see ``T.*``.
"""
OPEN = ("/health/live", "/health/ready", "/leader")
Stats = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
Inner = Callable[[bytes], bytes | None]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def fine() -> str:
    """No complaint."""
    return ""


class HttpServer:
    """
    The HTTP door of one node.

    Args:
        config: listens on ``node.host`` at ``node.http_port``.
        queues, tokens, schedules, cluster: the rooms that answer.
        clock: for the delay after a wrong secret.
        users: shared with the RESP door; made from the configuration when absent.
        lobby: where strangers are; likewise.
        alive: why ``/health/live`` should say 503, or ``""``: asked per request, must not block.
        ready: the same for ``/health/ready``.
        warning: what somebody should look at all the same; shown there.
        internal: paths on which other nodes ask; each takes a body and knows by itself whether it
            is of a node, else None.
        stats: for ``/metrics``, a part's name and its ``stats``; queues and tokens are asked
            anyway.

    ``connections_max``: as many as the limits say, unless the process has fewer files.
    """

    def __init__(
        self,
        config: Config,
        queues: Queues,
        tokens: Tokens | None,
        schedules: Schedules | None,
        cluster: Cluster,
        clock: Clock,
        users: Users | None = None,
        *,
        lobby: Lobby | None = None,
        alive: Callable[[], str] = fine,
        ready: Callable[[], str] = fine,
        warning: Callable[[], str] = fine,
        stats: Mapping[str, Stats] | None = None,
        internal: Mapping[str, Inner] | None = None,
    ) -> None:
        self._config = config
        self._queues = queues
        self._tokens = tokens
        self._schedules = schedules
        self._cluster = cluster
        self._clock = clock
        self._alive = alive
        self._ready = ready
        self._warning = warning
        self._stats = dict(stats or {})
        self._internal = dict(internal or {})
        loopback = is_loopback(config.node.host)
        self._users = users or Users(config.users, clock, loopback=loopback)
        self._lobby = Lobby(clock) if lobby is None else lobby
        self.connections_max = config.limits.http_connections_max
        self._reading = OpenRequests()
        self._listener: HttpListener | None = None
        self._tls: ssl.SSLContext | None = None

    async def start(self) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        app = web.Application(
            middlewares=[self._guard], client_max_size=self._config.limits.request_bytes
        )
        app.on_response_prepare.append(_sign)
        app.router.add_get("/health/live", self._health(lambda: self._alive()))
        app.router.add_get("/health/ready", self._health(lambda: self._ready()))
        app.router.add_get("/leader", self._leader)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/status", self._status)
        for path in self._internal:
            app.router.add_post(path, self._ask_internal)
        if self._tokens is not None:
            TokenRoutes(self._tokens, self._config.limits.batch_max).add_to(app.router)
            EventRoutes(self._tokens.events, self._clock).add_to(app.router)
        if self._schedules is not None:
            ScheduleRoutes(
                self._schedules, self._check_right, lambda request: request[RIGHTS]
            ).add_to(app.router)
        node = self._config.node
        strangers = ProtocolMismatch("HTTP", self._clock)
        self._listener = HttpListener(
            app,
            self.connections_max,
            self._config.limits.line_bytes,
            strangers,
            self._lobby,
            lambda: self._users.open,
        )
        self._tls = server_context(node.tls_cert, node.tls_key)
        await self._listener.start(node.host, node.http_port, self._tls)
        log.info("HTTP door open", extra={"host": node.host, "port": self.port})

    def reload(self, users: Collection[str] = ()) -> None:
        """
        Go on with the certificate that is in its files now; who reads something as one of these
        users is cut off.
        """
        self._reading.cut_off([*users, *(() if self._users.open else ("",))])
        if self._tls is not None:
            renew(self._tls, self._config.node.tls_cert, self._config.node.tls_key)

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        assert self._listener is not None
        return self._listener.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no new connection; answer what is under way for at most ``grace_s`` seconds."""
        if self._listener is not None:
            await self._listener.stop(grace_s)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who asks, and every error as JSON."""
        if request.path in self._internal:
            return await handler(request)
        try:
            self._check_origin(request)
            user = await self._check_user(request)
            if user and isinstance(request.protocol, HttpPeer):
                request.protocol.let_in()
            self._check_rights(request, user)
            # which took its time, in which users may have been read anew
            if await self._read_body(request):
                self._check_rights(request, user)
            with self._reading.by(request, user):
                return await handler(request)
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

    async def _read_body(self, request: web.Request) -> bool:
        """
        Whoever may ask sends the whole of it within :data:`BODY_S`; handlers find it there. Whether
        there is one.
        """
        if request.path in OPEN or not request.can_read_body:
            return False
        most = self._config.limits.request_bytes
        if (request.content_length or 0) > most:
            raise TooBig(f"A body may have {most} bytes; {request.content_length} are announced.")
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
        except TimeoutError:
            raise Timeout(f"The body did not come within {BODY_S:g} s.") from None
        request._read_bytes = unpacked(body, request.headers.get("Content-Encoding", ""), most)  # noqa: SLF001  read() gives it
        return True

    def _check_origin(self, request: web.Request) -> None:
        """
        A web page in somebody's browser must not reach a door that asks for no password (DNS
        rebinding, CSRF).
        """
        if not self._users.open:
            return
        for name in ("Host", "Origin"):
            value = request.headers.get(name)
            if value is not None and not is_loopback(_host_of(value)):
                raise Denied(
                    f"This door serves its own machine alone: the {name} header must be a loopback"
                    " address."
                )

    async def _check_user(self, request: web.Request) -> str:
        """Who asks; empty: nobody in particular, where that is enough."""
        if request.path in OPEN:
            return ""
        header = request.headers.get("Authorization", "")
        if not header:
            if self._users.open and not request.path.startswith(NAMED):
                return ""
            raise NoAuth("Send Authorization: Bearer user:secret.")
        scheme, _, credentials = header.partition(" ")
        if scheme.lower() != "bearer" or not credentials.strip():
            raise NoAuth("Only Authorization: Bearer user:secret is understood.")
        return await self._authenticate(credentials.strip(), peer_of(request.transport))

    def _check_rights(self, request: web.Request, user: str) -> None:
        request[USER], request[RIGHTS] = user, self._users.rights(user) if user else ALL
        resource = request.match_info.route.resource
        if not user or resource is None or request.path in OPEN:
            return
        method = "GET" if request.method == "HEAD" else request.method
        what = f"{method} {resource.canonical}"
        verb, name = (
            ROUTES.get((method, resource.canonical), what),
            request.match_info.get("name", ""),
        )
        if missing := lacking_for(
            request[RIGHTS], verb, (verb, name.encode("utf-8", "surrogateescape"))
        ):
            self._deny(request, what, missing)

    def _check_right(self, request: web.Request, what: str, demand: Demand) -> None:
        """What a route needs beside what its path tells. Raises: Denied."""
        if missing := lacking(request[RIGHTS], [demand]):
            self._deny(request, what, missing)

    def _deny(self, request: web.Request, what: str, missing: str) -> NoReturn:
        user = request[USER]
        error = denied(what, missing, user)
        self._users.deny(user, peer_of(request.transport), error)
        raise error

    async def _authenticate(self, credentials: str, peer: str) -> str:
        """``user:secret``, or a secret alone, which may have a colon itself."""
        user, colon, secret = credentials.partition(":")
        if not colon or not self._users.has(user):
            user, secret = "", credentials
        return await self._users.authenticate(user, secret, peer)

    def _health(self, ask: Callable[[], str]) -> Handler:
        async def health(request: web.Request) -> web.Response:
            complaint = ask()
            found: dict[str, Any] = {"ok": not complaint, "reason": complaint}
            if warning := self._warning():
                found["warning"] = warning
            return respond(found, 503 if complaint else 200)

        return health

    async def _leader(self, request: web.Request) -> web.Response:
        status = self._cluster.status()
        found = {
            "node": status.get("node"),
            "role": status.get("role"),
            "leader": status.get("leader"),
        }
        return respond(found, 200 if status.get("role") == "leader" else 503)

    async def _ask_internal(self, request: web.Request) -> web.Response:
        """
        What another node asks: it proves itself in the body, and whoever cannot is told nothing.
        """
        if not 0 < (request.content_length or 0) <= INTERNAL_BYTES:
            return web.Response(status=403)
        try:
            async with asyncio.timeout(BODY_S):
                reply = self._internal[request.path](await request.read())
        except TimeoutError:
            return web.Response(status=408)
        return web.Response(status=403) if reply is None else web.Response(body=reply)

    async def _status(self, request: web.Request) -> web.Response:
        return respond(dict(self._cluster.status()))

    async def _metrics(self, request: web.Request) -> web.Response:
        samples: list[metrics.Sample] = [("cluster", {}, _numbers(self._cluster.status()))]
        if self._listener is not None:
            samples.append(("http", {}, self._listener.stats()))
        for part, ask in self._stats.items():
            samples.append((part, {}, await _asked(ask)))
        # The node's own figures matter most just when the store is away.
        async for found in metrics.of_store(self._queues, self._tokens, request[RIGHTS]):
            samples += found
        return web.Response(
            body=await metrics.render(samples, self._clock),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """Else it would say which versions of which programs are here, to strangers too."""
    response.headers["Server"] = "tidewarden"


async def _asked(ask: Stats) -> Mapping[str, Any]:
    try:
        found = ask()
        return await found if inspect.isawaitable(found) else found
    except Error as error:
        log.debug("metrics without a part: %s", error)
        return {}


def _numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in status.items()
        if isinstance(value, int | float) and name != "pid"
    }
    return {
        **found,
        "leads": int(status.get("role") == "leader"),
        "members": len(status.get("members") or ()),
    }


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """
    A body as it was before ``encoding``, a Content-Encoding. Raises: BadArg, TooBig: it has more
    than ``most`` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in ("gzip", "x-gzip"):
        unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    elif name == "deflate":  # some send it without its header
        unpacking = zlib.decompressobj(
            zlib.MAX_WBITS if body[:1] and body[0] & 0xF == 8 else -zlib.MAX_WBITS
        )
    else:
        raise BadArg(f"A body may be in the Content-Encoding gzip or deflate: found {name[:40]!r}.")
    try:
        found = unpacking.decompress(body, most + 1)
    except zlib.error:
        found = b""
    if len(found) > most:
        raise TooBig(f"A body may have {most} bytes, unpacked.")
    if not unpacking.eof or unpacking.unused_data:
        raise BadArg("The body is not in the Content-Encoding that is announced.")
    return found


def _host_of(header: str) -> str:
    """
    The host of a Host or Origin header: without scheme and port; ``null`` stays as it is and is
    refused.
    """
    host = header.rpartition("://")[2].partition("/")[0]
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0]
