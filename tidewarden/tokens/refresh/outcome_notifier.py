"""Tells the outcome of a refresh to the rest of a node: its readers, its events, its counters."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from tidewarden.histograms import REFRESHES, Family
from tidewarden.tokens.accounts.account_record import RefreshTroubles, Step, parse_row
from tidewarden.tokens.accounts.cache import Cache
from tidewarden.tokens.accounts.waiting_readers import WaitingReaders
from tidewarden.tokens.events.lifecycle import AccountLifecycle
from tidewarden.tokens.events.revocation import Revoker
from tidewarden.tokens.journal.journal_records import JournalAnswer
from tidewarden.tokens.policy import due_times

log = logging.getLogger("tidewarden.tokens")


@dataclass(slots=True)
class Counts:
    """Counts the outcomes of a node's refreshes since its start."""

    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Refreshes by provider and class of outcome."""
    late: Counter[str] = field(default_factory=Counter)
    """Refreshes that succeeded after the old access token had expired, by provider."""
    short_lives: Counter[str] = field(default_factory=Counter)
    """Refreshes whose token lives shorter than another is asked for, by provider."""
    spares: int = 0
    """Answers that found their row moved on and were kept aside."""
    lost_rotations: int = 0
    """
    Accounts whose new refresh token was lost with its answer, for which consent is needed anew.
    """
    quarantines: Counter[str] = field(default_factory=Counter)
    """Times that a provider's refusals jumped and nobody was declared dead for it."""
    revocations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Revocations of deleted accounts' tokens, by provider and outcome."""
    adopted: int = 0
    """Answers that were found in another node's journal."""
    orphans: int = 0
    """Pairs that came while the store was away."""
    orphans_dropped: int = 0
    """Answers that came without the store, and whose accounts had moved on when it was back."""
    replayed: int = 0
    """Answers that came from the journal into the store."""
    times: Family = field(default_factory=lambda: Family(REFRESHES))
    """How long each refresh took, by provider and class of outcome."""

    def figures(self) -> dict[str, Any]:
        """Return each count by its name."""
        names = (each.name for each in fields(self) if each.name != "times")
        found = {name: getattr(self, name) for name in names}
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in found.items()
        }


class OutcomeNotifier:
    """
    Notifies readers, events and counters of the outcomes of one node's refreshes.

    Every method but :meth:`stored` returns at once and raises nothing.
    """

    def __init__(
        self,
        counts: Counts,
        cache: Cache,
        waiting_readers: WaitingReaders,
        lifecycle: AccountLifecycle,
        revoker: Revoker,
    ) -> None:
        self._counts = counts
        self._cache = cache
        self._waiting_readers = waiting_readers
        self._lifecycle = lifecycle
        self._revoker = revoker

    async def stored(self, provider: str, answer: JournalAnswer, word: str) -> None:
        """
        Note that the store has taken an answer, as ``word`` of :meth:`AccountStore.stored` says.

        Raises what the store raises, where the account is gone and its pair is to be revoked.
        """
        account = f"{provider}/{answer.account}"
        if word in ("SPARE", "PAST", "GONE", "MOVED"):
            self._cache.drop(account)
        if word in ("STORED", "RECOVERED"):
            self._lifecycle.refreshed(provider, answer.account, recovered=word == "RECOVERED")
        elif word == "SPARE":
            self._counts.spares += 1
            log.warning("%s had moved on when its answer came: kept as a spare", account)
        elif word == "PAST":
            log.info("%s was refreshed again since its answer came", account)
        elif word == "MOVED" and not answer.orphan:
            # Without a refresh token there is nothing to spare.
            log.info("%s had moved on when its answer came: it is dropped", account)
        elif word == "MOVED":
            self._counts.orphans_dropped += 1
            log.info("%s had moved on: what came for it without the store is dropped", account)
        elif word == "GONE":
            log.info("%s was deleted while it was refreshed", account)
            await self._revoker.abandoned(provider, answer.account, parse_row(answer.row))
        self._waiting_readers.wake(account, answer.generation + 1)

    def took(self, provider: str, outcome: str, seconds: float) -> None:
        """Count the seconds of a refresh whose end the store knows."""
        self._counts.times.of(provider, outcome).observe(seconds)

    def succeeded_late(self, provider: str) -> None:
        """Count a refresh that went well after the old access token had expired."""
        self._counts.late[provider] += 1

    def short_lived(self, provider: str, life_s: float) -> None:
        """Count a token that lives shorter than another is asked for; log the first."""
        if not self._counts.short_lives[provider]:
            log.warning(
                "access tokens of %s live for %g s, as it says (expires_in): another is asked for"
                " after %g s, and until then there is none that lives",
                provider,
                life_s,
                due_times.LIFE_S_MIN,
            )
        self._counts.short_lives[provider] += 1

    def adopted(self) -> None:
        """Count an answer that was found in another node's journal."""
        self._counts.adopted += 1

    def succeeded_alone(self) -> None:
        """Count a pair that came while the store was away."""
        self._counts.orphans += 1

    def replayed(self, answers: int) -> None:
        """Count answers that came from the journal into the store."""
        self._counts.replayed += answers

    def event_of(self, before: RefreshTroubles, now: RefreshTroubles, *, client_told: bool) -> str:
        """Name the event that a failed refresh is; empty: none."""
        return self._lifecycle.event_of(before, now, client_told=client_told)

    def failed(self, provider: str, account: str, generation: int, step: Step) -> None:
        """Note that a refresh has failed, and that the store knows."""
        self._lifecycle.failed(provider, account, step.event)
        if step.what == "lost":
            self._counts.lost_rotations += 1
        elif step.what == "dead":
            # Of one that is stopped the grant may live, and so may its token.
            self._cache.drop(f"{provider}/{account}")
        self._waiting_readers.wake(f"{provider}/{account}", generation)

    def moved_on(self, provider: str, account: str, generation: int) -> None:
        """Note that the account has another pair since its refresh began."""
        self._waiting_readers.wake(f"{provider}/{account}", generation)
