"""
Refreshes accounts while this node is cut off from the store.

The provider's ``orphan`` says whether that is done. No intent can be written then, so two nodes may
refresh one account: only providers that bear this may be set so. An answer is in the journal before
it is used, and goes to the store when that is back, unless the account has moved on since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tidewarden import errors
from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.cache import Cache, CachedToken
from tidewarden.tokens.limits.answer_counts import Ended
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.policy import due_times, failures
from tidewarden.tokens.provider.token_response import Verdict

from .outcome_notifier import OutcomeNotifier
from .token_request import TokenRequest
from .write_back import WriteBack

log = logging.getLogger("tidewarden.tokens")

HOLD_S = 30.0  # After an answer that tells all of a client's accounts to wait and names no time.


@dataclass(frozen=True, slots=True)
class OfflineClient:
    """Holds the parts that ask and write for one client, the same as while the store answers."""

    request: TokenRequest
    write_back: WriteBack
    limits: ClientLimits


class OfflineRefresher:
    """
    Refreshes accounts of one node while the store is away.

    ``clients``: the clients whose accounts may be refreshed so, by their providers' names.
    """

    def __init__(
        self,
        clients: Mapping[str, OfflineClient],
        cache: Cache,
        notifier: OutcomeNotifier,
        clock: Clock,
        dice: Random,
    ) -> None:
        self._clients = clients
        self._cache = cache
        self._notifier = notifier
        self._clock = clock
        self._dice = dice
        self._work: dict[str, asyncio.Task[None]] = {}
        self._tries: dict[str, tuple[int, float]] = {}
        """Each account's failures in a row, and until when it waits because of them."""
        self._held: dict[str, float] = {}
        """Until when a provider is left alone."""

    def serves(self, provider: str) -> bool:
        """Return whether this provider's accounts may be refreshed without the store."""
        return provider in self._clients

    async def fresh(self, provider: Provider, name: str, min_ttl_ms: int, wait_s: float) -> None:
        """
        Refresh an account that this node knows, if it is due or lives less than ``min_ttl_ms``.

        Return at once while it lives longer, else when the refresh has ended or the wait is over.
        The new pair is in the cache.
        """
        account, until = f"{provider.name}/{name}", self._clock.monotonic() + wait_s
        while True:
            kept = self._cache.whole(account)
            if kept is None:
                return
            now_ms = self._cache.now_ms(kept)
            urgent = kept.row.expires_at_ms - now_ms < max(1, min_ttl_ms)
            if not urgent and kept.row.due_ms > now_ms:
                return
            work = self._work.get(account)
            if work is None:
                if due_times.too_soon(provider, kept.row, now_ms) or self._held_back(
                    provider, account
                ):
                    return
                if self._may_begin(provider):
                    refreshing = self._refresh(provider, name, kept)
                    work = asyncio.create_task(
                        refreshing, name=f"refresh {account} without the store"
                    )
                    self._work[account] = work
                    work.add_done_callback(lambda _: self._work.pop(account, None))
            left_s = until - self._clock.monotonic()
            if not urgent or left_s <= 0:
                return
            if work is not None:
                await asyncio.wait([work], timeout=left_s)
                return
            if not self._work:
                return  # Its rate is used up; a reader that waits on asks again.
            await asyncio.wait(
                list(self._work.values()), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )

    async def stop(self) -> None:
        """Let requests that are under way end, for five seconds at most."""
        if self._work:
            _, late = await asyncio.wait(list(self._work.values()), timeout=5)
            for work in late:
                work.cancel()

    def _held_back(self, provider: Provider, account: str) -> bool:
        """Return whether an earlier answer forbids a request for this account or provider now."""
        return self._clock.monotonic() < max(
            self._held.get(provider.name, 0.0), self._tries.get(account, (0, 0.0))[1]
        )

    def _may_begin(self, provider: Provider) -> bool:
        """Return whether there is room for another request, and count the request if so."""
        under_way = sum(1 for one in self._work if one.startswith(f"{provider.name}/"))
        return self._clients[provider.name].limits.acquire_alone(under_way)

    async def _refresh(self, provider: Provider, name: str, kept: CachedToken) -> None:
        account = f"{provider.name}/{name}"
        try:
            verdict = await self._ask(provider, name, kept)
        except errors.Error as error:
            log.warning("%s is not refreshed without the store: %s %s", account, error.code, error)
            return
        except Exception:
            log.exception("refresh of %s without the store failed for a reason of ours", account)
            return
        now = self._clock.monotonic()
        if verdict.pair is not None:
            self._tries.pop(account, None)
            self._notifier.succeeded_alone()
            return
        tries = self._tries.get(account, (0, 0.0))[0] + 1
        if len(self._tries) > len(self._cache):
            self._tries.clear()  # What the cache has forgotten would stay here for ever.
        wait_s = max(failures.backoff(tries, self._dice.random()), verdict.retry_after_s or 0)
        self._tries[account] = tries, now + wait_s
        if verdict.scope == "client" or verdict.outcome == "rate_limited" or verdict.retry_after_s:
            self._held[provider.name] = now + (verdict.retry_after_s or HOLD_S)
        log.info("%s, without the store: %s %s", account, verdict.outcome, verdict.message)

    async def _ask(self, provider: Provider, name: str, kept: CachedToken) -> Verdict:
        """Ask for a pair; return when it is in the journal and the cache."""
        client, began_ms = self._clients[provider.name], self._cache.now_ms(kept)
        token = await client.request.unseal(name, kept.row)
        _, verdict = await client.request.ask(name, kept.row, token)
        verdict = client.limits.release(Ended(name, verdict, witness=False))
        if verdict.pair is not None:
            await client.write_back.settle_offline(name, kept, verdict.pair, token, began_ms)
        return verdict
