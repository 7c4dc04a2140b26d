"""Offers the store and other nodes the answers in the journal that the store has not confirmed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.peer_line import Mac
from tidewarden.tokens.accounts.account_record import parse_row
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.peer_queries import PeerReply, Question, kept_of, reply_to
from tidewarden.tokens.vault.vault import Vault

from .outcome_notifier import OutcomeNotifier
from .pool import Pool
from .under_way import UnderWay

log = logging.getLogger("tidewarden.tokens")

REPLAY_S = 2.0
REPLAY_MAX = 500


class JournalReplay:
    """Replays the journal of one node."""

    def __init__(
        self,
        node: str,
        journal: Journal,
        vault: Vault,
        clock: Clock,
        notifier: OutcomeNotifier,
        under_way: UnderWay,
        pools: Mapping[str, Pool],
        mac: Mac | None,
    ) -> None:
        """
        Replay on the node called ``node``, through the providers' ``pools``.

        Nodes prove by ``mac`` that they may ask; None: no question is answered.
        """
        self._node = node
        self._journal = journal
        self._vault = vault
        self._clock = clock
        self._notifier = notifier
        self._under_way = under_way
        self._pools = pools
        self._mac = mac

    async def run(self) -> None:
        """Replay the journal now and then, until cancelled."""
        while True:
            await sleep(self._clock, REPLAY_S)
            await self.replay()
            await self._journal.flush()

    async def replay(self) -> None:
        """Offer the store what it has not confirmed; it knows by itself what it has."""
        pools = {pool.queue: pool for pool in self._pools.values()}
        # Not those whose provider is not configured now (it may be again), nor those on their way.
        waiting = [
            answer
            for answer in self._journal.pending()
            if answer.queue in pools
            and (answer.queue, answer.account) not in self._under_way.storing
        ]
        for at in range(0, len(waiting), REPLAY_MAX):
            some = waiting[at : at + REPLAY_MAX]
            results = await asyncio.gather(
                *(pools[answer.queue].store(answer) for answer in some), return_exceptions=True
            )
            self._notifier.replayed(results.count(None))
            for answer, result in zip(some, results, strict=True):
                if isinstance(result, errors.StoreDown):
                    log.warning("%d answers wait in the journal: %s", len(waiting), result)
                    # The others would wait as long, one part after the other, and hear the same.
                    return
                if isinstance(result, errors.Error):
                    log.warning("an answer of %s waits in the journal: %s", answer.account, result)
                elif isinstance(result, BaseException):
                    raise result

    def answer_peer(self, raw: bytes) -> bytes | None:
        """
        Return the reply to another node's question.

        None: the question is of no node of this cluster, or meant for another.
        """
        if self._mac is None:
            return None
        question = self._mac.question(raw, Question)
        if question is None or question.node not in ("", self._node):
            return None
        journal, vault = self._journal, self._vault
        place = (question.queue, question.account)
        reply = PeerReply("none")
        if question.kept:
            reply = PeerReply("none", kept=kept_of(journal, vault, *place))
        elif answer := journal.find(*place, question.grant, question.generation):
            reply = PeerReply("answer", answer, *vault.wrapped_key(parse_row(answer.row).refresh))
        elif place in self._under_way.asking:
            reply = PeerReply("busy")
        elif any(
            pool.queue == question.queue and pool.unsent(question.account)
            for pool in self._pools.values()
        ):
            reply = PeerReply("unsent")
        return reply_to(raw, reply, self._mac)
