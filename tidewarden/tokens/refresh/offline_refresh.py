"""
Refreshing without the store: a node that is cut off from it keeps tokens alive for its readers,
where the provider's ``orphan`` says so.

No intent can be written then, so two nodes may refresh one account: only providers where that does
no harm may be set so. What comes is in the journal before it is used, and goes to the store when
that is back, unless the account has moved on since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from tidewarden import errors
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.tokens import policy
from tidewarden.tokens.accounts import details
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.accounts.cache import CachedToken
from tidewarden.tokens.limits.client_limits import ClientLimits
from tidewarden.tokens.limits.gathering import Ended
from tidewarden.tokens.provider import token_response
from tidewarden.tokens.provider.grant_request import (
    as_account,
    check_fit,
    following,
    granted_scope,
    marked,
)
from tidewarden.tokens.provider.token_response import HttpAnswer, Verdict
from tidewarden.tokens.vault.vault import Place

from .refresh_context import RefreshContext

log = logging.getLogger("tidewarden.tokens")

HOLD_S = 30.0  # After an answer that tells all of a client's accounts to wait and names no time.


class OfflineRefresher:
    """
    What one node refreshes while the store is away.

    Args:
        tools: what the refreshers of this node work with.
        limits: of the providers' clients that may be refreshed so, by name.
        queues: their accounts' queues.
    """

    def __init__(
        self,
        tools: RefreshContext,
        limits: Mapping[str, ClientLimits],
        queues: Mapping[str, str],
    ) -> None:
        self._limits = limits
        self._queues = queues
        self._cache = tools.cache
        self._vault = tools.vault
        self._journal = tools.journal
        self._exchange = tools.exchange
        self._clock = tools.clock
        self._dice = tools.dice
        self._counts = tools.counts
        self._work: dict[str, asyncio.Task[None]] = {}
        self._tries: dict[str, tuple[int, float]] = {}
        """Failures in a row of an account, and until when it waits for them."""
        self._held: dict[str, float] = {}
        """Until when a provider is left alone."""

    def serves(self, provider: str) -> bool:
        """Whether this provider's accounts may be refreshed without the store."""
        return provider in self._limits

    async def fresh(self, provider: Provider, name: str, min_ttl_ms: int, wait_s: float) -> None:
        """
        Have the account that this node knows refreshed, if it is due or has less life than
        ``min_ttl_ms``; return at once while it has more, else when the refresh has ended or the
        wait is over. What came of it is in the cache.
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
                if policy.too_soon(provider, kept.row, now_ms) or self._held_back(
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
                return  # Its rate is used up; whoever waits on asks again.
            await asyncio.wait(
                list(self._work.values()), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )

    async def stop(self) -> None:
        """Let what is under way end, five seconds at most."""
        if self._work:
            _, late = await asyncio.wait(list(self._work.values()), timeout=5)
            for work in late:
                work.cancel()

    def _held_back(self, provider: Provider, account: str) -> bool:
        """
        Whether an earlier answer wants this account, or all of its provider's, left alone now.
        """
        return self._clock.monotonic() < max(
            self._held.get(provider.name, 0.0), self._tries.get(account, (0, 0.0))[1]
        )

    def _may_begin(self, provider: Provider) -> bool:
        """Whether there is room for another request; counts it if so."""
        under_way = sum(1 for one in self._work if one.startswith(f"{provider.name}/"))
        return self._limits[provider.name].acquire_alone(under_way)

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
            self._counts.orphans += 1
            return
        tries = self._tries.get(account, (0, 0.0))[0] + 1
        if len(self._tries) > len(self._cache):
            self._tries.clear()  # What the cache has forgotten would stay here for ever.
        wait_s = max(policy.backoff(tries, self._dice.random()), verdict.retry_after_s or 0)
        self._tries[account] = tries, now + wait_s
        if verdict.scope == "client" or verdict.outcome == "rate_limited" or verdict.retry_after_s:
            self._held[provider.name] = now + (verdict.retry_after_s or HOLD_S)
        log.info("%s, without the store: %s %s", account, verdict.outcome, verdict.message)

    async def _ask(self, provider: Provider, name: str, kept: CachedToken) -> Verdict:
        """
        The request, by each of the client's secrets; a pair is in the journal and the cache when
        this returns.
        """
        row, began = kept.row, self._cache.now_ms(kept)
        sealed_for = self._place(provider, name, "refresh", row)
        token = check_fit(provider, (await self._vault.unseal(row.refresh, sealed_for)).decode())
        rules = token_response.rules_of(
            provider.paths, provider.errors, provider.extras, renews=provider.renews
        )
        its, sent = as_account(placeholders.filled(provider, row.details.parameters), token)
        for number in self._exchange.credentials.order(provider):
            outcome = await self._exchange.refresh(its, sent, number, account=name)
            verdict = token_response.classify(outcome, self._clock.unix_ms(), rules)
            if verdict.outcome != "invalid_client":
                break
        verdict = self._limits[provider.name].release(Ended(name, verdict, witness=False))
        pair = verdict.pair
        if pair is None or not isinstance(outcome, HttpAnswer):
            return verdict
        brought = following(token, pair.refresh_token)
        expires_at_ms, due_ms = policy.due_after(began, pair.life_s, provider, self._dice.random())
        new = replace(
            row,
            generation=kept.base[1] + 1,
            stored_ms=began,
            expires_at_ms=expires_at_ms,
            due_ms=due_ms,
            current=self._vault.fingerprint(provider.name, name, marked(brought))
            if provider.renews
            else row.current,
            token_type=pair.token_type,
            scope=granted_scope(provider, token, pair.scope, row.scope),
            refreshed=True,
            details=details.refreshed(provider, row.details, pair, began),
        )
        new = replace(
            new,
            access=self._vault.seal(
                pair.access_token.encode(), self._place(provider, name, "access", new)
            ),
            refresh=self._vault.seal(brought.encode(), self._place(provider, name, "refresh", new)),
        )
        await self._keep(provider, name, kept, new)
        return verdict

    async def _keep(
        self, provider: Provider, name: str, kept: CachedToken, new: AccountRow
    ) -> None:
        """
        The answer into the journal, in the place of an earlier one that the store has not seen
        either, and into the cache.
        """
        queue, journal = self._queues[provider.name], self._journal
        former = journal.find(queue, name, *kept.base)
        due, key = (new.due_ms, new.expires_at_ms), self._vault.wrapped_key(new.refresh)
        try:
            await journal.add_answer(queue, name, *kept.base, new.pack_all(), due, key, orphan=True)
        except OSError as error:
            log.error(
                "the journal does not take an answer of %s/%s: %s", provider.name, name, error
            )
        if former is not None:
            journal.stored(former)
        self._cache.renew(f"{provider.name}/{name}", kept, new)

    def _place(self, provider: Provider, name: str, field: str, row: AccountRow) -> Place:
        return Place(provider.name, name, field, row.grant, row.generation)
