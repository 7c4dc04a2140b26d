"""
Answers that promised success and could not be read: each lies sealed in the journal of the node that got it, and is shown to whoever
may have refresh tokens, by every node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from .journal import Journal
from .ledger import Ledger
from .peers import Kept, Peers, Reply
from .records import Raw
from .shelf import Shelf
from .vault import Place, Unsealable, Vault

log = logging.getLogger("tidewarden.tokens")

SHOWN_MAX = 8
"""Of one account at one node, the newest: what each may have (64 KiB) makes that half of what a reply to a peer may have."""


class Unreadable:
    """Looks for them here and at the other nodes."""

    def __init__(
        self,
        node: str,
        queues: Mapping[str, str],
        journal: Journal,
        vault: Vault,
        shelf: Shelf,
        ledger: Ledger,
        peers: Peers,
    ) -> None:
        """``node``: this one's name. ``queues``: by provider."""
        self._node = node
        self._queue_of = queues
        self._journal = journal
        self._vault = vault
        self._shelf = shelf
        self._ledger = ledger
        self._peers = peers

    async def of(self, provider: str, account: str) -> dict[str, Any]:
        """
        ``answers``, the newest first: each with ``node at_ms grant generation current body`` (bytes), ``current`` while nothing was
        stored since its request; and ``silent``, the nodes that could not be asked. Raises: what the store raises.
        """
        queue = self._queue_of[provider]
        row = (await self._ledger.get(queue, account)).row
        now = (row.grant, row.generation) if row is not None else None
        others = sorted(({*self._peers.members(), *await self._shelf.nodes()}) - {self._node})
        replies = await asyncio.gather(*(self._peers.ask_kept(node, queue, account) for node in others))
        found = [(self._node, one) for one in kept_of(self._journal, self._vault, queue, account)]
        for node, reply in zip(others, replies, strict=True):
            found += [(node, one) for one in reply.kept or ()]
        answers = []
        for node, one in sorted(found, key=lambda each: each[1].raw.unix_ms, reverse=True):
            raw = one.raw
            try:
                await self._vault.restore(one.key_id, one.key)
                body = await self._vault.unseal(raw.body, Place(provider, account, "raw", raw.grant, raw.generation))
            except Unsealable as error:
                log.error(
                    "an unreadable answer of %s/%s, which %s keeps, does not open: %s", provider, account, node, error
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


def kept_of(journal: Journal, vault: Vault, queue: str, account: str) -> list[Kept]:
    """What this node keeps of an account."""
    found: list[Raw] = [raw for raw in journal.raws() if (raw.queue, raw.account) == (queue, account)]
    return [Kept(raw, *vault.wrapped_key(raw.body)) for raw in found[-SHOWN_MAX:] if vault.holds(raw.body)]


def _silent(reply: Reply) -> bool:
    """It did not answer, or is of a version that does not know the question."""
    return reply.kept is None
