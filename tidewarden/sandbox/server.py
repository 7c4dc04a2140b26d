"""
Runs a sandbox: our own authorization server to try Tidewarden with.

For trials and tests, never for real accounts.

Its token endpoint is a real one (RFC 6749, 5 and 6) over HTTP, as strict as providers are: refresh
tokens rotate and work once, a reuse revokes the grant, access tokens live briefly. Around it are
knobs that no provider has: delay and faults on demand, and counts of everything. Every client that
reaches it may mint accounts, so that it listens on loopback only.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import parse_qsl, unquote_plus

from aiohttp import web

from tidewarden.clock import Clock, sleep
from tidewarden.config.load import is_loopback
from tidewarden.errors import BadArg

from .grants import CLIENT_ID, CLIENT_SECRET, GRANTS_MAX, SandboxGrants, account

log = logging.getLogger("tidewarden.sandbox")

PUBLIC_CLIENT_ID = "sandbox-public"
SCOPES = ("files", "mail")
BODY_BYTES_MAX = 65_536
FAULT_DELAY_MS_MAX = 600_000
_NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}


@dataclass(frozen=True, slots=True)
class SandboxFault:
    """Describes a fault of the token endpoint, for every ``every``-th request."""

    status: int = 0
    """Answer this status without looking at the request. 0: no."""
    retry_after: int = 0
    """Seconds in its Retry-After header. 0: no such header."""
    body: str = ""
    """Answer this text, with ``status`` or 200."""
    delay_ms: int = 0
    """Wait before anything else, milliseconds."""
    drop_after: int = 0
    """1: refresh, then cut the connection, so that the client never learns."""
    every: int = 1
    """1: every request."""


class SandboxRefusal(Exception):
    """The token endpoint says no: an error word of RFC 6749, 5.2, and the HTTP status."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.description = description
        self.status = status


class Sandbox:
    """
    Serves the endpoints of the sandbox. State lies in ``folder`` and outlives the process.

    Args: ``life_s``: life of an access token. ``grace_s``: how long the token used last still gets
    the same successor.
    """

    def __init__(
        self, folder: Path | str, clock: Clock, *, life_s: float = 120.0, grace_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._life_ms = round(life_s * 1000)
        self._grants = SandboxGrants(
            Path(folder), life_ms=self._life_ms, grace_ms=round(grace_s * 1000)
        )
        self._fault = SandboxFault()
        self._requests = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    @property
    def token_url(self) -> str:
        """Return the address for ``[providers.NAME] token_url``."""
        return f"{self.url}/token"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """
        Serve; returns the port (a free one for 0).

        Raises: BadArg: ``host`` is not loopback. OSError: the port is taken.
        """
        if not is_loopback(host):
            raise BadArg(
                f"the sandbox listens on loopback only, found {host!r}: whoever reaches it may mint"
                " accounts"
            )
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/token", self._token)
        app.router.add_get("/me", self._me)
        app.router.add_route("*", "/fault", self._set_fault)
        app.router.add_route("*", "/seed", self._seed)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/", self._hello)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        log.info(
            "sandbox authorization server at %s, access tokens live %g s",
            self.url,
            self._life_ms / 1000,
        )
        return bound

    async def stop(self) -> None:
        """Stop serving and let go of the folder."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._grants.close()

    def mint(self, total: int) -> None:
        """Make accounts until there are ``total``."""
        self._grants.mint(total)

    def seeds(self, first: int = 0, *, access: bool = True) -> list[dict[str, str]]:
        """
        List accounts from number ``first`` on as rows for ``tidewarden token import``.

        Revoked accounts are left out.

        Their access tokens have between a quarter and the whole of a life left, evenly, as accounts
        collected over time have; otherwise all would be due in the same second for ever.
        """
        now_ms = self._clock.unix_ms()
        rows = []
        for number in range(first, len(self._grants.grants)):
            if self._grants.grants[number].revoked:
                continue
            left_ms = self._life_ms // 4 + self._life_ms * 3 // 4 * (number * 7919 % 1000) // 1000
            pair = self._grants.current(number, left_ms, now_ms)
            row = {"account": account(number), "refresh_token": pair.refresh_token}
            if access:
                row |= {"access_token": pair.access_token, "expires_at_ms": str(pair.expires_at_ms)}
            rows.append(row)
        return rows

    async def _token(self, request: web.Request) -> web.StreamResponse:
        self._requests += 1
        # first: a client that goes while it waits must not take its request back
        body = await request.text()
        fault = self._fault if self._requests % self._fault.every == 0 else SandboxFault()
        if fault.delay_ms:
            await sleep(self._clock, fault.delay_ms / 1000)
        if fault.status or fault.body:
            headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
            return web.Response(
                status=fault.status or 200,
                text=fault.body,
                headers=headers,
                content_type="text/html",
            )
        try:
            answer = self._refresh(request.headers, request.content_type, body)
        except SandboxRefusal as refused:
            headers = dict(_NO_STORE)
            if refused.status == 401:
                headers["WWW-Authenticate"] = 'Basic realm="sandbox"'
            text = json.dumps({"error": refused.error, "error_description": refused.description})
            return web.Response(
                status=refused.status, text=text, headers=headers, content_type="application/json"
            )
        if fault.drop_after and request.transport is not None:
            request.transport.abort()
        return web.Response(
            text=json.dumps(answer), headers=_NO_STORE, content_type="application/json"
        )

    def _refresh(
        self, headers: Mapping[str, str], content_type: str, body: str
    ) -> dict[str, object]:
        """
        Refresh a token (RFC 6749, 6).

        Raises: Refused: and nothing was used up, except that a reuse revokes.
        """
        if content_type != "application/x-www-form-urlencoded":
            raise SandboxRefusal(
                "invalid_request", "the body must be application/x-www-form-urlencoded"
            )
        pairs = parse_qsl(body, keep_blank_values=False)
        form = dict(pairs)
        if len(form) != len(pairs):
            raise SandboxRefusal("invalid_request", "a parameter occurs twice")
        _authenticate(headers.get("Authorization", ""), form)
        if "grant_type" not in form:
            raise SandboxRefusal("invalid_request", "grant_type is missing")
        if form["grant_type"] != "refresh_token":
            raise SandboxRefusal(
                "unsupported_grant_type", "this sandbox knows grant_type=refresh_token only"
            )
        if "refresh_token" not in form:
            raise SandboxRefusal("invalid_request", "refresh_token is missing")
        scopes = form.get("scope", " ".join(SCOPES)).split()
        if not set(scopes) <= set(SCOPES):
            raise SandboxRefusal("invalid_scope", f"the grant has {' '.join(SCOPES)}")
        pair = self._grants.refresh(form["refresh_token"], self._clock.unix_ms())
        if pair is None:
            raise SandboxRefusal(
                "invalid_grant", "the refresh token is unknown, revoked or was used before"
            )
        return {
            "access_token": pair.access_token,
            "token_type": "Bearer",
            "expires_in": self._life_ms // 1000,
            "refresh_token": pair.refresh_token,
            "scope": " ".join(scopes),
        }

    async def _me(self, request: web.Request) -> web.Response:
        """Serve a protected resource, which proves that an access token lives."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        number = (
            self._grants.whose(token, self._clock.unix_ms()) if kind.lower() == "bearer" else None
        )
        if number is None:
            return web.json_response(
                {"error": "invalid_token"}, status=401, headers={"WWW-Authenticate": "Bearer"}
            )
        return web.json_response({"account": account(number)})

    async def _set_fault(self, request: web.Request) -> web.Response:
        try:
            self._fault = _parse_fault(request.query)
        except BadArg as error:
            return web.json_response({"error": str(error)}, status=400)
        log.warning("fault: %s", self._fault if self._fault != SandboxFault() else "none any more")
        return web.json_response(
            {item.name: getattr(self._fault, item.name) for item in fields(SandboxFault)}
        )

    async def _seed(self, request: web.Request) -> web.Response:
        try:
            total = _whole(request.query, "n", 0, GRANTS_MAX)
            first = _whole(request.query, "from", 0, GRANTS_MAX)
            access = bool(_whole(request.query, "access", 0, 1, default=1))
        except BadArg as error:
            return web.json_response({"error": str(error)}, status=400)
        self.mint(total)
        columns = [
            "account",
            "refresh_token",
            *(["access_token", "expires_at_ms"] if access else []),
        ]
        lines = [
            "\t".join(columns),
            *("\t".join(row.values()) for row in self.seeds(first, access=access)),
        ]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/tab-separated-values")

    async def _stats(self, request: web.Request) -> web.Response:
        """
        Answer totals.

        With ``?grants=1`` they include each account's generation and tokens presented more than
        once.
        """
        stats: dict[str, object] = {**self._grants.stats(), "requests": self._requests}
        if request.query.get("grants") == "1":
            stats["accounts"] = self._grants.detail()
        return web.json_response(stats)

    async def _hello(self, request: web.Request) -> web.Response:
        return web.Response(
            text=(
                "Tidewarden's sandbox authorization server: for trials, never for real"
                " accounts.\nPOST /token    GET /me /stats /stats?grants=1 /seed?n=10"
                " /fault?status=503&retry_after=2&every=10 /fault\n"
            )
        )


def _authenticate(authorization: str, form: Mapping[str, str]) -> None:
    """
    Authenticate the client (RFC 6749, 2.3).

    Raises: Refused: it is no client of ours, or it proved itself twice.
    """
    client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
    if authorization:
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "basic":
            raise SandboxRefusal(
                "invalid_client", "clients authenticate by Basic, in the body, or not at all", 401
            )
        if secret:
            raise SandboxRefusal(
                "invalid_request", "the client authenticated in the header and in the body"
            )
        try:
            first, _, second = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise SandboxRefusal("invalid_client", "the Basic header is not base64", 401) from None
        client_id, secret = unquote_plus(first), unquote_plus(second)
    if (client_id, secret) not in ((CLIENT_ID, CLIENT_SECRET), (PUBLIC_CLIENT_ID, "")):
        raise SandboxRefusal("invalid_client", "unknown client, or a wrong secret", 401)


def _parse_fault(query: Mapping[str, str]) -> SandboxFault:
    known = {item.name for item in fields(SandboxFault)}
    if unknown := sorted(set(query) - known):
        raise BadArg(f"unknown {unknown[0]!r}; known are {', '.join(sorted(known))}")
    status = _whole(query, "status", 0, 599)
    if 0 < status < 200:
        raise BadArg(f"status: found {status}; allowed: 200 to 599")
    return SandboxFault(
        status=status,
        retry_after=_whole(query, "retry_after", 0, 86_400),
        body=query.get("body", ""),
        delay_ms=_whole(query, "delay_ms", 0, FAULT_DELAY_MS_MAX),
        drop_after=_whole(query, "drop_after", 0, 1),
        every=_whole(query, "every", 1, 1_000_000, default=1),
    )


def _whole(query: Mapping[str, str], name: str, low: int, high: int, default: int = 0) -> int:
    text = query.get(name, str(default))
    if text.isascii() and text.isdigit() and low <= int(text[:20]) <= high:
        return int(text)
    raise BadArg(f"{name}: found {text[:80]!r}; allowed: a whole number from {low} to {high}")
