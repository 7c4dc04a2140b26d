"""Keeps access tokens for as long as the nodes allow, and asks for each once at a time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from tidewarden.client.client import AsyncClient
from tidewarden.client.replies import Token
from tidewarden.clock import Clock
from tidewarden.errors import Error, NotFound, Unreachable

ACCOUNTS_MAX = 10_000
REFUSED_S = 30.0
"""A resource that refuses whatever token it gets has an account refreshed so often at most."""
RECHECK_S = 5.0
"""So soon the cluster is asked again for a token that was refused: another may be there."""

LOOKS_MAX = 100

log = logging.getLogger("tidewarden.client")


@dataclass(slots=True)
class _Kept:
    token: Token
    until: float  # in monotonic seconds, as all times here: when it is looked at again
    dies_at: float
    since: float
    refused: int = 0  # the newest generation that a resource has refused
    asked_newer_at: float = float("-inf")


class TokenCache:
    """
    Holds the tokens of one client. All of it runs in the client's event loop.

    A token that lives is served at once. When it may be kept no longer, the cluster is asked beside
    that; nobody waits. Callers that find no living token share one request to the cluster, which
    goes on when one of them is cancelled.

    Args:
        min_ttl_ms: of the life that a token must have left when it comes.
        wait_ms: how long a refresh is waited for.
    """

    def __init__(self, client: AsyncClient, clock: Clock, *, min_ttl_ms: int, wait_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._min_ttl_ms = min_ttl_ms
        self._wait_ms = wait_ms
        self._kept: dict[str, _Kept] = {}
        self._flights: dict[tuple[str, int], asyncio.Task[Token]] = {}

    async def get(self, account: str) -> Token:
        """
        Return the account's token, from memory while it lives.

        Raises: what :meth:`AsyncClient.token` raises.
        """
        kept, now = self._kept.get(account), self._clock.monotonic()
        if kept is None or now >= kept.dies_at:
            return await self._answer(self._flight(account, 0))
        if now >= kept.until and (account, 0) not in self._flights:
            self._look(account)
        return kept.token

    async def newer(self, account: str, refused: Token) -> Token | None:
        """
        Return a token of a later generation than one that a resource has refused.

        None: there is none, or one was asked for a moment ago.
        """
        kept = self._kept.get(account)
        if kept is None:
            return None  # of so many accounts that it was forgotten; the next request asks anew
        kept.refused = max(kept.refused, refused.generation)
        if kept.token.generation > kept.refused:
            return kept.token
        now = self._clock.monotonic()
        if (account, kept.refused) not in self._flights:
            if now - kept.asked_newer_at < REFUSED_S:
                return None
            kept.asked_newer_at = now
        try:
            found = await self._answer(self._flight(account, kept.refused))
        except Error as error:
            log.warning("%s was refused, and there is no newer token: %s", account, error)
            kept.until = min(kept.until, self._clock.monotonic() + RECHECK_S)
            return None  # the resource's refusal is the answer then
        return found if found.generation > refused.generation else None

    def _flight(self, account: str, newer: int) -> asyncio.Task[Token]:
        """Return the request that is under way, or a new one."""
        return self._flights.get((account, newer)) or self._fly(account, newer)

    def _fly(self, account: str, newer: int) -> asyncio.Task[Token]:
        flight = self._client.begin(self._ask(account, newer))
        self._flights[account, newer] = flight
        flight.add_done_callback(lambda done: self._landed(account, newer, done))
        return flight

    def _landed(self, account: str, newer: int, flight: asyncio.Task[Token]) -> None:
        del self._flights[account, newer]
        if not flight.cancelled():
            flight.exception()  # whoever asked may have gone, and nobody else wants it

    async def _answer(self, flight: asyncio.Task[Token]) -> Token:
        """Wait for a request that others may wait for. Raises: what it does; Unreachable."""
        try:
            return await asyncio.shield(flight)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if flight.cancelled() and waiter is not None and not waiter.cancelling():
                raise Unreachable("this client was closed") from None
            raise

    def _look(self, account: str) -> None:
        """Ask the cluster, while others use the kept token."""
        if len(self._flights) < LOOKS_MAX:
            self._fly(account, 0).add_done_callback(lambda done: self._looked(account, done))

    def _looked(self, account: str, flight: asyncio.Task[Token]) -> None:
        error = None if flight.cancelled() else flight.exception()
        kept = self._kept.get(account)
        if error is None or kept is None:
            return
        if isinstance(error, NotFound):
            del self._kept[account]  # the next request is told
            return
        log.warning("%s is used without having been looked at again: %s", account, error)
        kept.until = self._clock.monotonic() + RECHECK_S

    async def _ask(self, account: str, newer: int) -> Token:
        asked_at = self._clock.monotonic()  # its time runs from no later than the node's answer
        found = await self._client.token(
            account, min_ttl_ms=self._min_ttl_ms, wait_ms=self._wait_ms, newer=newer, keep=True
        )
        now = self._clock.monotonic()
        dies_at = now + (found.expires_at_ms - self._client.nodes.store_ms()) / 1000
        kept = self._kept.get(account)
        if kept is None:
            while len(self._kept) >= ACCOUNTS_MAX:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[account] = _Kept(found, 0.0, dies_at, now)
        elif found.generation < kept.token.generation:
            if asked_at < kept.since:
                return kept.token  # the answers of two requests have crossed
            kept.refused = 0  # the account was deleted and put anew
        kept.token, kept.dies_at, kept.since = found, dies_at, now
        keep_s = found.keep_ms / 1000
        kept.until = max(
            now + RECHECK_S, asked_at + (keep_s if found.generation > kept.refused else 0.0)
        )
        return found
