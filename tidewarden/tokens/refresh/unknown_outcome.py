"""
Resolves requests of unknown outcome: an intent that was left open, now or before.

The node that wrote the intent may hold the answer in its journal, so it is asked first; only then
the provider's rotation and grace decide.
"""

from __future__ import annotations

import logging
from typing import Literal

from tidewarden import errors
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import Step
from tidewarden.tokens.accounts.account_store import AccountStore, Opened
from tidewarden.tokens.journal.peer_queries import PeerReply, Peers
from tidewarden.tokens.policy import failures

from .write_back import WriteBack

log = logging.getLogger("tidewarden.tokens")

BUSY_S = 2.0


class UnknownOutcomes:
    """Resolves the doubts about the accounts of one provider's client."""

    def __init__(
        self,
        provider: Provider,
        queue: str,
        node: str,
        accounts: AccountStore,
        peers: Peers,
        write_back: WriteBack,
    ) -> None:
        """Resolve on the node called ``node``."""
        self._provider = provider
        self._queue = queue
        self._node = node
        self._accounts = accounts
        self._peers = peers
        self._write_back = write_back

    async def resolve(self, account: str, opened: Opened) -> Step | Literal["go", "stored"]:
        """
        Resolve the outcome of a request, as far as it can be known.

        Returns: ``go``: a request may be sent, as far as this goes; ``stored``: none is needed,
        because the answer was found. A step: what to do instead of a request. The remaining doubt
        is in the troubles of ``opened`` afterwards.
        """
        found, row, troubles = opened.found, opened.row, opened.troubles
        fits = found is not None and (found.grant, found.generation) == (row.grant, row.generation)
        holder = found.holder if found is not None and fits else troubles.holder
        if not holder:
            return "go"
        reply = PeerReply("none")  # This node's own journal was looked into before.
        if holder.rpartition(".")[0] != self._node:
            reply = await self._peers.ask(holder, self._queue, account, row.grant, row.generation)
        if reply.state == "answer" and reply.answer is not None:
            log.info(
                "%s/%s: its answer is in the journal of %s", self._provider.name, account, holder
            )
            try:
                await self._write_back.adopt(reply)
            except errors.Error as error:
                log.warning(
                    "%s/%s: that answer is not stored yet: %s", self._provider.name, account, error
                )
            else:
                return "stored"
        if found is not None and fits and reply.state != "unsent":
            troubles.doubts += 1
            troubles.doubt_ms = troubles.doubt_ms or found.started_ms
            log.info("%s: an intent of %s was left open", self._provider.name, holder)
        troubles.holder = holder if reply.state in ("answer", "busy", "away") else ""
        if reply.state == "answer":
            # Asked for again: nothing in the store tells of it but this, for the intent is ours
            # now.
            return self._wait(opened, BUSY_S, f"{holder} has the answer, which was not stored yet")
        if reply.state == "busy":
            return self._wait(opened, BUSY_S, f"{holder} is asking the provider")
        if reply.state in ("none", "unsent") and await self._moved_on(account, opened):
            # The node that was asked had stored its answer just before it knew of nothing.
            return "stored"
        # Of one that was given up its token was refused: nothing is spoiled.
        if reply.state == "away" and not troubles.dead:
            wait_s = failures.patience(
                self._provider.rotation,
                self._provider.grace_s,
                opened.now_ms,
                troubles.doubt_ms,
                row.expires_at_ms,
            )
            if wait_s:
                return self._wait(
                    opened,
                    wait_s,
                    f"{holder} may hold the answer and does not say; it is asked again",
                )
        return "go"

    async def _moved_on(self, account: str, opened: Opened) -> bool:
        row = (await self._accounts.get(self._queue, account)).row
        return row is None or (row.grant, row.generation) != (
            opened.row.grant,
            opened.row.generation,
        )

    def _wait(self, opened: Opened, wait_s: float, message: str) -> Step:
        troubles = opened.troubles
        troubles.outcome, troubles.message = "unknown", message
        troubles.first_ms = troubles.first_ms or opened.now_ms
        troubles.last_ms, troubles.next_ms = opened.now_ms, opened.now_ms + int(wait_s * 1000)
        return Step(
            "retry",
            wait_s,
            troubles,
            until_ms=failures.saved_until_ms(self._provider, troubles, opened.now_ms),
        )
