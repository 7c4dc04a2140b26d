"""
Shows answers that promised success and could not be read.

Each lies sealed in the journal of the node that got it; every node shows it to a user who may have
refresh tokens, as long as its account exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.peer_queries import PeerReply, Peers, kept_of
from tidewarden.tokens.vault.key_store import KeyStore
from tidewarden.tokens.vault.vault import Place, Unsealable, Vault

log = logging.getLogger("tidewarden.tokens")

LOOK_S = 60.0


class UnreadableAnswers:
    """Finds unreadable answers here and at the other nodes."""

    def __init__(
        self,
        node: str,
        queues: Mapping[str, str],
        journal: Journal,
        vault: Vault,
        key_store: KeyStore,
        accounts: AccountStore,
        peers: Peers,
        clock: Clock,
    ) -> None:
        """Serve on the node called ``node``; ``queues`` are the providers' queues."""
        self._node = node
        self._queue_of = queues
        self._journal = journal
        self._vault = vault
        self._key_store = key_store
        self._accounts = accounts
        self._peers = peers
        self._clock = clock

    async def run(self) -> None:
        """
        Drop the answers of deleted accounts, for ever, although another node may have deleted them.

        This node may have been down then.
        """
        while True:
            await self.drop_former()
            await sleep(self._clock, LOOK_S)

    async def drop_former(self) -> None:
        """
        Drop the answers that are known to be of a former account.

        Never raises: an account that the store does not tell of now is looked at again.
        """
        queues = set(self._queue_of.values())
        raws = [raw for raw in self._journal.raws() if raw.queue in queues]
        readings = await asyncio.gather(
            *(self._accounts.get(raw.queue, raw.account) for raw in raws), return_exceptions=True
        )
        former = []
        for raw, reading in zip(raws, readings, strict=True):
            if isinstance(reading, errors.Error):
                log.debug(
                    "whose an unreadable answer of %s is, is not known: %s", raw.account, reading
                )
            elif isinstance(reading, BaseException):
                raise reading
            elif raw.grant < reading.began or (reading.row is None and raw.grant <= reading.floor):
                former.append(raw)  # A store that has lost its accounts has lost the floor, too.
        if former:
            log.info("%d unreadable answers are dropped: their accounts were deleted", len(former))
            self._journal.forget(former)
            await self._journal.flush()

    async def of(self, provider: str, account: str) -> dict[str, Any]:
        """
        Return the answers of an account, the newest first, and the nodes that could not be asked.

        ``answers``: each with ``node at_ms grant generation current body`` (bytes), ``current``
        while nothing was stored since its request; ``silent``: those nodes. Raises: what the store
        raises.
        """
        queue = self._queue_of[provider]
        reading = await self._accounts.get(queue, account)
        row = reading.row
        if row is None:
            return {"answers": [], "silent": []}
        now = (row.grant, row.generation)
        others = sorted(({*self._peers.members(), *await self._key_store.nodes()}) - {self._node})
        replies = await asyncio.gather(
            *(self._peers.ask_kept(node, queue, account) for node in others)
        )
        found = [(self._node, one) for one in kept_of(self._journal, self._vault, queue, account)]
        for node, reply in zip(others, replies, strict=True):
            found += [(node, one) for one in reply.kept or ()]
        answers = []
        for node, one in sorted(found, key=lambda each: each[1].raw.unix_ms, reverse=True):
            raw = one.raw
            if raw.grant < reading.began:
                continue  # It came for another account of that name, perhaps somebody else's.
            try:
                await self._vault.restore(one.key_id, one.key)
                body = await self._vault.unseal(
                    raw.body, Place(provider, account, "raw", raw.grant, raw.generation)
                )
            except Unsealable as error:
                log.error(
                    "an unreadable answer of %s/%s, which %s keeps, does not open: %s",
                    provider,
                    account,
                    node,
                    error,
                )
                continue
            at = (raw.grant, raw.generation)
            answers.append(
                {
                    "node": node,
                    "at_ms": raw.unix_ms,
                    "grant": at[0],
                    "generation": at[1],
                    "current": at == now,
                    "body": body,
                }
            )
        return {
            "answers": answers,
            "silent": [node for node, reply in zip(others, replies, strict=True) if _silent(reply)],
        }


def _silent(reply: PeerReply) -> bool:
    """Return whether a node did not answer, or is of a version that does not know the question."""
    return reply.kept is None
