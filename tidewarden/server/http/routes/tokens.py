"""
The routes of tokens, accounts and providers of the HTTP door.

A secret is in no error text, and in no cache but the asker's own.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web

from tidewarden.config.rights import ACCOUNT_LOOK, ALL, Rights
from tidewarden.errors import BadArg, Denied, Error, NotFound
from tidewarden.server.http.params import check_path, flag, query_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import Route
from tidewarden.server.verbs.token import (
    STEERED,
    Note,
    account_name,
    fields_of,
    no_reader,
    provider_name,
    read_many,
    seen_stats,
    steered,
)
from tidewarden.tokens import AccountToken, Tokens

Answer = TypeVar("Answer")
COUNT = 100
BATCH_MAX = 1000
DIGITS_MAX = 10


def _everything(request: web.Request) -> Rights:
    return ALL


def _unnoted(request: web.Request, name: str) -> Denied:
    return no_reader(request.path, name, "")


def _no_reader(request: web.Request) -> Note | None:
    return None


class TokenRoutes:
    """
    ``/v1/tokens``, ``/v1/accounts``, ``/v1/providers``.

    An account's name stands in the path, its own ``/`` as it is or as ``%2F``.

    Args:
        tokens: those of the node.
        batch_max: so many accounts may be read at once.
        rights: those of who asks.
        deny: notes and returns the error for one account among others, whose token who asks may
            not read.
        reader: what is told each account whose token is read; None: nobody is.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_max: int = BATCH_MAX,
        rights: Callable[[web.Request], Rights] = _everything,
        deny: Callable[[web.Request, str], Denied] = _unnoted,
        reader: Callable[[web.Request], Note | None] = _no_reader,
    ) -> None:
        self._tokens = tokens
        self._batch_max = batch_max
        self._rights = rights
        self._deny = deny
        self._reader = reader

    async def get(self, request: web.Request) -> web.Response:
        """
        Return an access token with at least ``min_ttl`` seconds left.

        It is waited for at most ``wait`` seconds, and of a later generation than ``newer``; 304 if
        the client has it already. It may be what was stored ``max_stale`` seconds ago.

        ``Cache-Control`` tells how long it may be used without asking again.
        """
        query = query_of(request, ("min_ttl", "wait", "newer", "max_stale"))
        min_ttl_ms, wait_ms = _milliseconds(query, "min_ttl"), _milliseconds(query, "wait")
        token = await self._tokens.get(
            _account(request),
            min_ttl_ms,
            wait_ms,
            _whole_number(query, "newer"),
            _milliseconds(query, "max_stale"),
        )
        headers = {
            "Cache-Control": f"private, max-age={token.keep_ms // 1000}",
            "ETag": f'"{token.grant}.{token.generation}.{token.state}"',
            "Vary": "Authorization",
        }
        if headers["ETag"] in _etags(request.headers.get("If-None-Match", "")):
            return web.Response(status=304, headers=headers)
        return respond(_shown(token), headers=headers)

    async def read(self, request: web.Request) -> web.Response:
        """
        Return many access tokens, each with its token or its error.

        The body is ``{"accounts": […], "min_ttl": s, "wait": s, "max_stale": s}``.
        """
        asked = fields_of(await request.read())
        names = asked.pop("accounts", None)
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) for name in names)
        ):
            raise BadArg("accounts must be a list of one or more names like provider/account.")
        if len(names) > self._batch_max:
            raise BadArg(
                f"accounts has {len(names)} names; allowed are {self._batch_max}"
                " (limits.batch_max)."
            )
        if unknown := sorted(asked.keys() - {"min_ttl", "wait", "max_stale"}):
            raise BadArg(
                f"There is no field {unknown[0][:40]!r} here; there are accounts, min_ttl, wait,"
                " max_stale."
            )
        accounts = [account_name(name.encode("utf-8", "surrogatepass")) for name in names]
        query = {name: str(value) for name, value in asked.items()}
        found = await read_many(
            self._tokens,
            accounts,
            self._rights(request),
            lambda name: self._deny(request, name),
            self._reader(request),
            min_ttl_ms=_milliseconds(query, "min_ttl"),
            wait_ms=_milliseconds(query, "wait"),
            max_stale_ms=_milliseconds(query, "max_stale"),
        )
        return respond(
            {
                "tokens": [
                    (
                        {"account": name, "error": one.code, "message": str(one)}
                        if isinstance(one, Error)
                        else {"account": name, **_shown(one), "keep_ms": one.keep_ms}
                    )
                    for name, one in zip(accounts, found, strict=True)
                ]
            }
        )

    async def put(self, request: web.Request) -> web.Response:
        """
        Store an account, or a new consent of one.

        With ``keep`` an existing account that is not dead stays as it is.
        """
        keep = flag(query_of(request, ("keep",)), "keep")
        put = await _whole(
            self._tokens.put_told(_account(request), fields_of(await request.read()), keep=keep)
        )
        return respond({"generation": put.generation, "change": put.change, "state": put.state})

    async def peek(self, request: web.Request) -> web.Response:
        """How an account is, why, since when, and what can be done; no token."""
        return respond(await self._tokens.peek(_account(request)))

    async def why(self, request: web.Request) -> web.Response:
        """Why an account, or a provider as a whole, is as it is: the story as of ``T.WHY``."""
        query_of(request, ())
        whole = "account" not in request.match_info
        return respond(await self._tokens.why(_provider(request) if whole else _account(request)))

    async def steer(self, request: web.Request) -> web.Response:
        """
        Release, probe or quarantine a provider, as the path's last word says.

        Returns its story from then on.
        """
        query_of(request, ())
        name, action = _provider(request), request.path.rpartition("/")[2]
        return respond(await _whole(steered(self._tokens, action, name)))

    async def answers(self, request: web.Request) -> web.Response:
        """
        Return the unreadable successful answers of an account's provider.

        ``body`` is text, or ``body_base64`` if it is none.
        """
        found = await self._tokens.custody.answers(_account(request))
        return respond({**found, "answers": [_told(one) for one in found["answers"]]})

    async def providers(self, request: web.Request) -> web.Response:
        """Each provider: its accounts by state, and how it stands with us."""
        query_of(request, ())
        found = await seen_stats(self._tokens, self._rights(request))
        return respond(
            {"providers": [{"provider": name, **figures} for name, figures in found.items()]}
        )

    async def delete(self, request: web.Request) -> web.Response:
        """Forget an account."""
        account = _account(request)
        if not await _whole(self._tokens.delete(account)):
            raise NotFound(f"There is no account {account}.")
        return respond({"deleted": True})

    async def refresh(self, request: web.Request) -> web.Response:
        """
        Have an account refreshed now, if its ``generation`` is still that. Does not wait for it.

        Answers ``queued``, ``leased`` (somebody is at it), ``recent`` (done a moment ago, and again
        when five seconds are over), or ``moved`` (it has another).
        """
        generation = _whole_number(query_of(request, ("generation",)), "generation")
        return respond({"refresh": await self._tokens.refresh(_account(request), generation)}, 202)

    async def list(self, request: web.Request) -> web.Response:
        """A page of accounts, without their tokens."""
        query = query_of(request, ("provider", "state", "count", "after"))
        count = _whole_number(query, "count", COUNT)
        accounts, after = await self._tokens.list(
            query.get("provider", ""),
            query.get("state", "").lower(),
            count,
            query.get("after", ""),
            self._rights(request).accounts(*ACCOUNT_LOOK),
        )
        return respond({"accounts": accounts, "after": after})


async def _whole(work: Awaitable[Answer]) -> Answer:
    """What changes something is done to its end, though whoever asked has gone."""
    return await asyncio.shield(asyncio.ensure_future(work))


def _shown(token: AccountToken) -> dict[str, Any]:
    return {
        "access_token": token.access_token,
        "token_type": token.token_type,
        "expires_at_ms": token.expires_at_ms,
        "generation": token.generation,
        "state": token.state,
        "extras": dict(token.extras),
    }


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    body: bytes = answer["body"]
    try:
        return answer | {"body": body.decode()}
    except UnicodeDecodeError:
        rest = {name: value for name, value in answer.items() if name != "body"}
        return rest | {"body_base64": base64.b64encode(body).decode()}


def _etags(header: str) -> list[str]:
    """The entity tags of If-None-Match, compared weakly (RFC 9110, 13.1.2)."""
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


def _account(request: web.Request) -> str:
    check_path(request)
    name = f"{request.match_info['provider']}/{request.match_info['account']}"
    return account_name(name.encode("utf-8", "surrogateescape"))


def _provider(request: web.Request) -> str:
    check_path(request)
    return provider_name(request.match_info["provider"].encode("utf-8", "surrogateescape"))


def _whole_number(query: dict[str, Any], name: str, absent: int = 0) -> int:
    text = query.get(name, str(absent))
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX:
        raise BadArg(f"{name} must be an integer of 0 or more: found {text[:40]!r}.")
    return int(text)


def _milliseconds(query: dict[str, Any], name: str) -> int:
    """Seconds, which may have a fraction, as milliseconds."""
    text = query.get(name, "0")
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        raise BadArg(f"{name} must be a number of seconds of 0 or more: found {text[:40]!r}.")
    return round(float(text) * 1000)


ACCOUNT = "/{provider}/{account}"
ROUTES = (
    Route("GET", "/v1/tokens", "T.LIST", TokenRoutes.list),
    Route("POST", "/v1/tokens:read", "T.MGET", TokenRoutes.read, reads=True),
    Route("GET", f"/v1/accounts{ACCOUNT}/why", "T.WHY", TokenRoutes.why),
    Route("GET", f"/v1/accounts{ACCOUNT}", "T.PEEK", TokenRoutes.peek),
    Route("GET", f"/v1/answers{ACCOUNT}", "T.ANSWERS", TokenRoutes.answers),
    Route("GET", "/v1/providers", "T.STATS", TokenRoutes.providers),
    Route("GET", "/v1/providers/{provider}/why", "T.WHY", TokenRoutes.why),
    *(
        Route("POST", f"/v1/providers/{{provider}}/{action}", "T.PROVIDER", TokenRoutes.steer)
        for action in STEERED
    ),
    Route("POST", f"/v1/tokens{ACCOUNT}/refresh", "T.REFRESH", TokenRoutes.refresh),
    Route("GET", f"/v1/tokens{ACCOUNT}", "T.GET", TokenRoutes.get),
    Route("PUT", f"/v1/tokens{ACCOUNT}", "T.PUT", TokenRoutes.put),
    Route("DELETE", f"/v1/tokens{ACCOUNT}", "T.DELETE", TokenRoutes.delete),
)
