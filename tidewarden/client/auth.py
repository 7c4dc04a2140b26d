"""
Authenticates requests of httpx with the access token of an account.

``httpx.Client(auth=TokenAuth("shop/42"))``, or one of httpx's ``AsyncClient``: each request gets
the account's token, which is kept as long as the cluster allows. When a resource answers 401, the
account is refreshed, once for all of the process that wait for it, and the request is sent once
more (RFC 6750, 3.1). :mod:`tidewarden.client.requests_auth` does the same for requests.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

import httpx

from .blocking import Client
from .client import AsyncClient
from .loop_thread import Bridge
from .replies import Token
from .token_cache import TokenCache

MIN_TTL_MS = 10_000
WAIT_MS = 10_000
RETRY_S = 10.0  # of the client that is made where none is given
UNAUTHORIZED = 401

Found = TypeVar("Found")
_lock = threading.Lock()
_own: dict[int, Client] = {}  # of this process, by its pid: none survives a fork
_caches: weakref.WeakKeyDictionary[AsyncClient, dict[tuple[int, int], TokenCache]] = (
    weakref.WeakKeyDictionary()
)


class AccountTokens:
    """
    Hands out the tokens of one account, to threads and to asyncio tasks of any loop.

    All of a process that use the same client, or none, share what is kept and what is under way.

    Args:
        account: ``provider/account``.
        client: a :class:`Client`, which serves threads and any loop; an :class:`AsyncClient`, which
            serves the asyncio tasks of its own loop; None: one for the process, which is made when
            first needed, with the addresses that ``Client()`` finds.
        min_ttl_ms: of the life that a token must have left when it is fetched.
        wait_ms: how long a refresh is waited for.
    """

    def __init__(
        self,
        account: str,
        client: Client | AsyncClient | None = None,
        *,
        min_ttl_ms: int = MIN_TTL_MS,
        wait_ms: int = WAIT_MS,
    ) -> None:
        self.account = account
        self._client = client
        self._limits = (min_ttl_ms, wait_ms)

    def get(self) -> Token:
        """Return the token; blocks. Raises: what :meth:`Client.token` raises."""
        return self._bridge().run(self._cache().get(self.account))

    def newer(self, refused: Token) -> Token | None:
        """Return a newer token than one that a resource refused; blocks. None: there is none."""
        return self._bridge().run(self._cache().newer(self.account, refused))

    async def get_async(self) -> Token:
        """Return the token. Raises: what :meth:`AsyncClient.token` raises."""
        return await self._there(lambda cache: cache.get(self.account))

    async def newer_async(self, refused: Token) -> Token | None:
        """Return a newer token than one that a resource refused. None: there is none."""
        return await self._there(lambda cache: cache.newer(self.account, refused))

    async def _there(self, ask: Callable[[TokenCache], Coroutine[Any, Any, Found]]) -> Found:
        """Run it in the loop that the client lives in."""
        if isinstance(self._client, AsyncClient):
            return await ask(self._cache())
        loop = self._bridge().loop
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(self._cache()), loop))

    def _bridge(self) -> Bridge:
        if isinstance(self._client, AsyncClient):
            raise RuntimeError("an AsyncClient serves asyncio alone: give TokenAuth a Client here")
        return (self._client or own_client()).bridge

    def _cache(self) -> TokenCache:
        inner = (
            self._client
            if isinstance(self._client, AsyncClient)
            else (self._client or own_client()).inner
        )
        with _lock:
            caches = _caches.setdefault(inner, {})
            if (cache := caches.get(self._limits)) is None:
                min_ttl_ms, wait_ms = self._limits
                cache = caches[self._limits] = TokenCache(
                    weakref.proxy(inner), inner.clock, min_ttl_ms=min_ttl_ms, wait_ms=wait_ms
                )
        return cache


def own_client() -> Client:
    """Return the client of this process for those who gave none."""
    with _lock:
        pid = os.getpid()
        if (client := _own.get(pid)) is None:
            _own.clear()
            client = _own[pid] = Client(retry_s=RETRY_S)
        return client


class TokenAuth(httpx.Auth):
    """
    Authenticates the requests of httpx clients as one account; see :class:`AccountTokens`.

    A request is repeated after a 401 only where its body can be sent again: one that streams from a
    generator cannot, and its caller gets the 401.

    Args:
        account: ``provider/account``.
        client, min_ttl_ms, wait_ms: as of :class:`AccountTokens`.
        scheme: the word before the token; None: the token's own type.

    Raises: in requests, what :meth:`Client.token` raises: NotFound, NoAuth, Timeout, Unreachable.
    """

    def __init__(
        self,
        account: str,
        client: Client | AsyncClient | None = None,
        *,
        min_ttl_ms: int = MIN_TTL_MS,
        wait_ms: int = WAIT_MS,
        scheme: str | None = None,
    ) -> None:
        self._tokens = AccountTokens(account, client, min_ttl_ms=min_ttl_ms, wait_ms=wait_ms)
        self._scheme = scheme

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        """Authenticate a request of ``httpx.Client``."""
        token = self._tokens.get()
        sent = self._sign(request, token)
        response = yield request
        if refused(response, sent) and (newer := self._tokens.newer(token)) and again(request):
            response.read()  # before the connection can be used again
            self._sign(request, newer)
            yield request

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Authenticate a request of ``httpx.AsyncClient``."""
        token = await self._tokens.get_async()
        sent = self._sign(request, token)
        response = yield request
        if not refused(response, sent):
            return
        newer = await self._tokens.newer_async(token)
        if newer is not None and again(request):
            await response.aread()
            self._sign(request, newer)
            yield request

    def _sign(self, request: httpx.Request, token: Token) -> str:
        request.headers["Authorization"] = sent = authorization(token, self._scheme)
        return sent


def authorization(token: Token, scheme: str | None = None) -> str:
    """
    Return the header's value.

    Providers write ``bearer`` in any case (RFC 6749, 5.1), and not every resource reads it so.
    """
    kind = scheme if scheme is not None else token.token_type
    return f"{'Bearer' if kind.lower() in ('', 'bearer') else kind} {token.access_token}"


def refused(response: httpx.Response, sent: str) -> bool:
    """Tell whether the token was refused, and not a request that a redirect led elsewhere."""
    return (
        response.status_code == UNAUTHORIZED
        and response.request.headers.get("Authorization") == sent
    )


def again(request: httpx.Request) -> bool:
    """Tell whether a body can be sent again: one that comes in chunks cannot."""
    return "Transfer-Encoding" not in request.headers
