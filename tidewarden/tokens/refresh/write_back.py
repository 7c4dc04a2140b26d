"""
Writes answers back: sealed, brought to disk in the journal, then into the store.

None of them is ever thrown away.
"""

from __future__ import annotations

import logging
from random import Random

from msgspec.structs import replace

from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts import details
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.accounts.account_store import ORPHAN, AccountStore, Opened
from tidewarden.tokens.accounts.cache import Cache, CachedToken
from tidewarden.tokens.accounts.sealing import seal_pair
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.journal_records import JournalAnswer
from tidewarden.tokens.journal.peer_queries import PeerReply
from tidewarden.tokens.policy import due_times
from tidewarden.tokens.provider.grant_request import following, granted_scope, marked
from tidewarden.tokens.provider.token_response import TokenPair
from tidewarden.tokens.vault.vault import Place, Vault

from .outcome_notifier import OutcomeNotifier

log = logging.getLogger("tidewarden.tokens")


class WriteBack:
    """Writes back the answers to the accounts of one provider's client."""

    def __init__(
        self,
        provider: Provider,
        queue: str,
        node: str,
        accounts: AccountStore,
        vault: Vault,
        journal: Journal,
        cache: Cache,
        notifier: OutcomeNotifier,
        clock: Clock,
        dice: Random,
    ) -> None:
        """Write for the node called ``node``."""
        self.provider = provider
        self.queue = queue
        self._node = node
        self._accounts = accounts
        self._vault = vault
        self._journal = journal
        self._cache = cache
        self._notifier = notifier
        self._clock = clock
        self._dice = dice
        self.life_s = provider.default_life_s
        """How long the last access token lives."""

    async def settle(self, account: str, opened: Opened, pair: TokenPair, sent_token: str) -> None:
        """
        Seal the pair, bring it to disk, write it back.

        ``sent_token``: what the account brought, as it was sealed.
        """
        name, old = self.provider.name, opened.row
        # The store's time when the intent was written, a moment before the request was sent: the
        # safe side.
        base = (old.grant, old.generation)
        row = self._renewed(account, base, old, pair, sent_token, opened.now_ms)
        self.life_s = (row.expires_at_ms - opened.now_ms) / 1000
        if 0 < old.expires_at_ms <= opened.now_ms:
            self._notifier.succeeded_late(name)
        # With its details where they are others, and where whoever revokes it has to know them.
        whole = row.details != old.details or self.provider.account_parameters
        answer = await self._to_disk(account, base, row, row.pack_all() if whole else row.pack())
        # The request may have taken so long, and life counts from before it: a kept token must not
        # be thought to live longer.
        now_ms = opened.now_ms + int(self.provider.timeout_s * 1000)
        self._cache.keep(f"{name}/{account}", row, now_ms, read=False)
        # Where the grace lasts into the next refresh, the token that was used now may save the
        # account then.
        again = pair.refresh_token and self.provider.grace_s * 1000 > row.due_ms - opened.now_ms
        previous = replace(old, access=b"", scope="").pack() if again else b""
        await self.store(answer, previous)

    async def settle_offline(
        self, account: str, kept: CachedToken, pair: TokenPair, sent_token: str, sent_ms: int
    ) -> None:
        """
        Seal a pair that came while the store is away, bring it to disk, and cache it.

        On disk it takes the place of an earlier pair that the store has not seen either.
        """
        row = self._renewed(account, kept.base, kept.row, pair, sent_token, sent_ms)
        former = self._journal.find(self.queue, account, *kept.base)
        await self._to_disk(account, kept.base, row, row.pack_all(), orphan=True)
        if former is not None:
            self._journal.stored(former)
        self._cache.renew(f"{self.provider.name}/{account}", kept, row)

    def _renewed(
        self,
        account: str,
        base: tuple[int, int],
        old: AccountRow,
        pair: TokenPair,
        sent_token: str,
        sent_ms: int,
    ) -> AccountRow:
        """
        Return the row that a pair makes of ``old``; ``base``: grant and generation in the store.
        """
        provider, vault = self.provider, self._vault
        brought = following(sent_token, pair.refresh_token)
        at = (old.grant, base[1] + 1)
        expires_at_ms, due_ms = due_times.due_after(
            sent_ms, pair.life_s, provider, self._dice.random()
        )
        if (life_s := (expires_at_ms - sent_ms) / 1000) < due_times.LIFE_S_MIN:
            self._notifier.short_lived(provider.name, life_s)
        access, refresh = seal_pair(vault, provider.name, account, at, pair.access_token, brought)
        return AccountRow(
            grant=at[0],
            generation=at[1],
            stored_ms=sent_ms,
            expires_at_ms=expires_at_ms,
            due_ms=due_ms,
            origin=old.origin,
            current=vault.fingerprint(provider.name, account, marked(brought))
            if provider.renews
            else old.current,
            token_type=pair.token_type,
            scope=granted_scope(provider, sent_token, pair.scope, old.scope),
            access=access,
            refresh=refresh,
            refreshed=True,
            details=details.refreshed(provider, old.details, pair, sent_ms),
        )

    async def _to_disk(
        self,
        account: str,
        base: tuple[int, int],
        row: AccountRow,
        packed: bytes,
        *,
        orphan: bool = False,
    ) -> JournalAnswer:
        """Write the answer into the journal; if that fails, it is still whole in memory."""
        due, key = (row.due_ms, row.expires_at_ms), self._vault.wrapped_key(row.refresh)
        try:
            return await self._journal.add_answer(
                self.queue, account, *base, packed, due, key, orphan=orphan
            )
        except OSError as error:
            # The store may well take it.
            log.error(
                "the journal does not take an answer of %s/%s: %s",
                self.provider.name,
                account,
                error,
            )
            found = self._journal.find(self.queue, account, *base)
            if found is None:
                raise
            return found

    async def store(self, answer: JournalAnswer, previous: bytes = b"") -> None:
        """
        Write a journalled answer back.

        ``previous``: the row it came from, packed, if its refresh token may be needed again.

        Raises what the store raises; the answer stays in the journal then.
        """
        await self._write(answer, previous)
        self._journal.stored(answer)

    async def adopt(self, reply: PeerReply) -> None:
        """
        Write back what another node found in its journal.

        Raises what the store raises; that node has it still.
        """
        assert reply.answer is not None
        await self._vault.restore(reply.key_id, reply.key)
        await self._write(reply.answer)
        self._notifier.adopted()

    async def _write(self, answer: JournalAnswer, previous: bytes = b"") -> None:
        base = (answer.grant, answer.generation)
        word = await self._accounts.stored(
            self.queue,
            answer.account,
            base,
            answer.row,
            answer.due_ms,
            answer.deadline_ms,
            ORPHAN if answer.orphan or not self.provider.renews else previous,
        )
        await self._notifier.stored(self.provider.name, answer, word)

    async def keep_raw(self, account: str, opened: Opened, body: bytes) -> str:
        """
        Keep an answer that cannot be read, sealed.

        Returns the node that has it then; empty: its journal does not take it.
        """
        row = opened.row
        place = Place(self.provider.name, account, "raw", row.grant, row.generation)
        sealed = self._vault.seal(body, place)
        try:
            await self._journal.add_raw(
                self.queue,
                account,
                row.grant,
                row.generation,
                self._clock.unix_ms(),
                sealed,
                self._vault.wrapped_key(sealed),
            )
        except OSError as error:
            log.error(
                "the journal does not take an unreadable answer of %s/%s: %s",
                self.provider.name,
                account,
                error,
            )
            return ""
        return self._node
