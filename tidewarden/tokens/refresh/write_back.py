"""
What becomes of an answer: sealed, brought to disk in the journal, written back to the store. None
of it is ever thrown away.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tidewarden.config.load import Provider
from tidewarden.tokens import policy
from tidewarden.tokens.accounts import details
from tidewarden.tokens.accounts.account_record import AccountRow, parse_row
from tidewarden.tokens.accounts.account_store import ORPHAN, Opened
from tidewarden.tokens.journal.journal_records import JournalAnswer
from tidewarden.tokens.journal.peer_queries import PeerReply
from tidewarden.tokens.provider.grant_request import following, granted_scope, marked
from tidewarden.tokens.provider.token_response import TokenPair
from tidewarden.tokens.vault.vault import Place

from .refresh_context import RefreshContext

log = logging.getLogger("tidewarden.tokens")


class WriteBack:
    """Settles the answers of one provider's client."""

    def __init__(self, provider: Provider, queue: str, tools: RefreshContext) -> None:
        self.provider = provider
        self.queue = queue
        self._tools = tools
        self.life_s = provider.default_life_s
        """How long the access token lives that came last."""

    async def settle(self, account: str, opened: Opened, pair: TokenPair, sent_token: str) -> None:
        """
        Seal the pair, bring it to disk, write it back. ``sent_token``: what the account brought, as
        it was sealed.
        """
        tools, name = self._tools, self.provider.name
        old = opened.row
        brought = following(sent_token, pair.refresh_token)
        generation = old.generation + 1
        # The store's time when the intent was written, a moment before the request was sent: the
        # safe side.
        expires_at_ms, due_ms = policy.due_after(
            opened.now_ms, pair.life_s, self.provider, tools.dice.random()
        )
        self.life_s = (expires_at_ms - opened.now_ms) / 1000
        row = AccountRow(
            grant=old.grant,
            generation=generation,
            stored_ms=opened.now_ms,
            expires_at_ms=expires_at_ms,
            due_ms=due_ms,
            origin=old.origin,
            current=tools.vault.fingerprint(name, account, marked(brought))
            if self.provider.renews
            else old.current,
            token_type=pair.token_type,
            scope=granted_scope(self.provider, sent_token, pair.scope, old.scope),
            access=tools.vault.seal(
                pair.access_token.encode(), Place(name, account, "access", old.grant, generation)
            ),
            refresh=tools.vault.seal(
                brought.encode(), Place(name, account, "refresh", old.grant, generation)
            ),
            refreshed=True,
            details=details.refreshed(self.provider, old.details, pair, opened.now_ms),
        )
        # With its details where they are others, and where whoever revokes it has to know them.
        whole = row.details != old.details or self.provider.account_parameters
        if 0 < old.expires_at_ms <= opened.now_ms:
            tools.counts.late[name] += 1
        base = (old.grant, old.generation)
        key = tools.vault.wrapped_key(row.refresh)
        try:
            answer = await tools.journal.add_answer(
                self.queue,
                account,
                *base,
                row.pack_all() if whole else row.pack(),
                (due_ms, expires_at_ms),
                key,
            )
        except OSError as error:
            # In memory it is still whole, and the store may well take it.
            log.error("the journal does not take an answer of %s/%s: %s", name, account, error)
            found = tools.journal.find(self.queue, account, *base)
            if found is None:
                raise
            answer = found
        # The request may have taken so long, and life counts from before it: a kept token must not
        # be thought to live longer.
        now_ms = opened.now_ms + int(self.provider.timeout_s * 1000)
        tools.cache.keep(f"{name}/{account}", row, now_ms, read=False)
        # Where the grace lasts into the next refresh, the token that was used now may save the
        # account then.
        again = pair.refresh_token and self.provider.grace_s * 1000 > due_ms - opened.now_ms
        previous = replace(old, access=b"", scope="").pack() if again else b""
        await self.store(answer, previous)

    async def store(self, answer: JournalAnswer, previous: bytes = b"") -> None:
        """
        Write a journalled answer back; ``previous``: the row it came from, packed, if its refresh
        token may be needed again.

        Raises what the store raises; the answer stays in the journal then.
        """
        await self._write(answer, previous)
        self._tools.journal.stored(answer)

    async def adopt(self, reply: PeerReply) -> None:
        """
        Write back what another node found in its journal. Raises what the store raises; that node
        has it still.
        """
        assert reply.answer is not None
        await self._tools.vault.restore(reply.key_id, reply.key)
        await self._write(reply.answer)
        self._tools.counts.adopted += 1

    async def _write(self, answer: JournalAnswer, previous: bytes = b"") -> None:
        tools = self._tools
        base = (answer.grant, answer.generation)
        word = await tools.ledger.stored(
            self.queue,
            answer.account,
            base,
            answer.row,
            answer.due_ms,
            answer.deadline_ms,
            ORPHAN if answer.orphan or not self.provider.renews else previous,
        )
        if word in ("SPARE", "PAST", "GONE", "MOVED"):
            tools.cache.drop(f"{self.provider.name}/{answer.account}")
        if word in ("STORED", "RECOVERED") and tools.tidings is not None:
            tools.tidings.refreshed(
                self.provider.name, answer.account, recovered=word == "RECOVERED"
            )
        if word == "SPARE":
            tools.counts.spares += 1
            log.warning(
                "%s/%s had moved on when its answer came: kept as a spare",
                self.provider.name,
                answer.account,
            )
        elif word == "PAST":
            log.info(
                "%s/%s was refreshed again since its answer came",
                self.provider.name,
                answer.account,
            )
        elif word == "MOVED" and not answer.orphan:
            # Without a refresh token there is nothing to spare.
            log.info(
                "%s/%s had moved on when its answer came: it is dropped",
                self.provider.name,
                answer.account,
            )
        elif word == "MOVED":
            tools.counts.orphans_dropped += 1
            log.info(
                "%s/%s had moved on: what came for it without the store is dropped",
                self.provider.name,
                answer.account,
            )
        elif word == "GONE":
            log.info("%s/%s was deleted while it was refreshed", self.provider.name, answer.account)
            if tools.revoker is not None:
                await tools.revoker.abandoned(
                    self.provider.name, answer.account, parse_row(answer.row)
                )
        tools.on_settled(f"{self.provider.name}/{answer.account}", answer.generation + 1)

    async def keep_raw(self, account: str, opened: Opened, body: bytes) -> str:
        """
        Keep an answer that cannot be read, sealed; the node that has it then, empty: its journal
        does not take it.
        """
        tools, row = self._tools, opened.row
        place = Place(self.provider.name, account, "raw", row.grant, row.generation)
        sealed = tools.vault.seal(body, place)
        try:
            await tools.journal.add_raw(
                self.queue,
                account,
                row.grant,
                row.generation,
                tools.clock.unix_ms(),
                sealed,
                tools.vault.wrapped_key(sealed),
            )
        except OSError as error:
            log.error(
                "the journal does not take an unreadable answer of %s/%s: %s",
                self.provider.name,
                account,
                error,
            )
            return ""
        return tools.queues.catalog.holder.rpartition(".")[0]
