"""Hands out the tokens of one account, to threads and to asyncio tasks of any loop."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidewarden.client.blocking import Client
from tidewarden.client.client import AsyncClient
from tidewarden.client.loop_thread import Bridge
from tidewarden.client.replies import Token

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
        return await self._bridge().there(ask(self._cache()))

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
    """Return the client of this process for account tokens that were given none."""
    with _lock:
        pid = os.getpid()
        if (client := _own.get(pid)) is None:
            _own.clear()
            client = _own[pid] = Client(retry_s=RETRY_S)
        return client


def authorization(token: Token, scheme: str | None = None) -> str:
    """
    Return the header's value.

    Providers write ``bearer`` in any case (RFC 6749, 5.1), and not every resource reads it so.
    """
    kind = scheme if scheme is not None else token.token_type
    return f"{'Bearer' if kind.lower() in ('', 'bearer') else kind} {token.access_token}"
