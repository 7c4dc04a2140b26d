"""What a node does about a request of unknown outcome, by what is known and what a peer replies."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from support.tokens import harness

from tidewarden.clock import SystemClock
from tidewarden.errors import StoreDown
from tidewarden.tokens.accounts.account_record import AccountRow, Intent, RefreshTroubles, Step
from tidewarden.tokens.accounts.account_store import Opened
from tidewarden.tokens.journal.journal_records import JournalAnswer
from tidewarden.tokens.journal.peer_queries import PeerReply
from tidewarden.tokens.refresh.unknown_outcome import UnknownOutcomes
from tidewarden.tokens.refresh.write_back import WriteBack

ROW = AccountRow(1, 2, 1_000, 3_601_000, 3_001_000, b"a" * 8, b"b" * 8)
ANSWER = PeerReply("answer", JournalAnswer(1, "q", "a", 1, 2, b"row", 10, 20), 7, b"wrapped")


class Site:
    """One node's side of it; what it asks of the vault, the store and the notifier is recorded."""

    def __init__(self, reply: PeerReply) -> None:
        self.reply = reply
        self.asked: list[tuple[Any, ...]] = []
        self.restores = True
        provider = harness.provider("http://127.0.0.1:9/token", rotation="single_use", grace_s=60.0)
        fakes: Any = SimpleNamespace(
            ask=self._ask, restore=self._restore, stored=self._stored, adopted=lambda: None
        )
        write_back = WriteBack(
            provider, "q", "n1", fakes, fakes, fakes, fakes, fakes, SystemClock(), Random(1)
        )
        self.outcomes = UnknownOutcomes(provider, "q", "n1", fakes, fakes, write_back)

    async def _ask(self, *_: Any) -> PeerReply:
        return self.reply

    async def _restore(self, key_id: int, wrapped: bytes) -> None:
        if not self.restores:
            raise StoreDown("away")
        self.asked.append(("restore", key_id, wrapped))

    async def _stored(self, *args: Any) -> str:
        if args[0] == "q":
            self.asked.append(("stored", args[3]))
        return "STORED"


def opened(troubles: RefreshTroubles, started_ms: int, *, now_ms: int) -> Opened:
    """What a node finds that begins where n0 has left an intent open."""
    found = Intent(1, 2, started_ms, started_ms + 1_000, b"", 1, "n0.1")
    return Opened(now_ms, ROW, troubles, None, found)


@pytest.mark.parametrize("restores", [True, False])
async def test_a_peers_answer_is_stored_once_its_key_is_there(restores: bool) -> None:
    """Else nobody could read it, and its refresh token would be lost."""
    site = Site(ANSWER)
    site.restores = restores
    found = await site.outcomes.resolve("a", opened(RefreshTroubles(), 1_000, now_ms=9_000))
    if restores:
        assert found == "stored"
        assert site.asked == [("restore", 7, b"wrapped"), ("stored", b"row")]
    else:
        assert isinstance(found, Step)
        assert site.asked == []


@pytest.mark.parametrize(("first_ms", "waits"), [(0, False), (900, True)])
async def test_the_grace_counts_from_the_first_doubt(first_ms: int, waits: bool) -> None:
    """A refresh token that is used once is not sent again past its grace, while the other lives."""
    site, now_ms = Site(PeerReply("away")), 60_950
    troubles = RefreshTroubles(doubts=int(first_ms > 0), doubt_ms=first_ms)
    found = await site.outcomes.resolve("a", opened(troubles, 60_000, now_ms=now_ms))
    assert troubles.doubt_ms == (first_ms or 60_000)
    assert isinstance(found, Step) == waits
