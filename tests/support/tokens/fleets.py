"""
Plays days of a fleet at a provider in time that is handed in: the product's own decisions about
real accounts of records, and no store, network or clock.

One node decides. What several would tell each other is told at once here; the queue is a heap.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import RefreshTroubles
from tidewarden.tokens.limits import judgement, throttle
from tidewarden.tokens.limits.answer_counts import AnswerCounts, Ended, is_refusal, kind_of
from tidewarden.tokens.limits.client_record import ClientRecord
from tidewarden.tokens.policy import due_times
from tidewarden.tokens.policy.failures import Case, after_failure
from tidewarden.tokens.provider.token_response import Verdict

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BEGIN_MS = 1_700_000_000_000
WELL = Verdict("ok", "account")
REFUSED = Verdict(
    "invalid_grant", "account", "HTTP 400 invalid_grant", brief="HTTP 400 invalid_grant"
)
TELL_MS, ROUSED_WITHIN_MS = 30_000, 10_000
NEVER_MS = 1 << 62


@dataclass(slots=True)
class Account:
    """One account, and what became of it."""

    number: int
    due_ms: int
    expires_ms: int
    stored_ms: int
    refreshed: bool = True
    troubles: RefreshTroubles | None = None
    revoked_ms: int = NEVER_MS
    """From when on its grant is gone indeed."""
    ended_ms: int = 0
    late_ms: int = 0
    """For how long its readers had no token that lived, by now."""


Answers = Callable[[Account, int], Verdict]
"""What the provider answers for an account then, unix milliseconds, whose grant lives."""


@dataclass
class Fleet:
    """A fleet, what is known of its client, and the time."""

    accounts: int
    life_s: float
    answers: Answers
    seed: int = 1
    refreshed: bool = True
    """All accounts were refreshed well before; else they were put, and never tried."""
    crowd: bool = False
    """All fall due at once, and not one by one."""
    revoked_a_day: float = 0.0
    record: ClientRecord = field(default_factory=ClientRecord)
    events: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    sampled_ms: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.provider = Provider(name="p")
        self.now_ms = BEGIN_MS
        self._counts = AnswerCounts(BEGIN_MS / 1000)
        self._told_ms = BEGIN_MS
        self._heap: list[tuple[int, int]] = []
        life_ms = int(self.life_s * 1000)
        self.all = []
        for number in range(self.accounts):
            sent_ms = BEGIN_MS - (life_ms if self.crowd else self.dice.randrange(life_ms))
            expires_ms, due_ms = due_times.due_after(
                sent_ms, self.life_s, self.provider, self.dice.random()
            )
            due_ms, expires_ms = max(BEGIN_MS, due_ms), max(BEGIN_MS + 300_000, expires_ms)
            account = Account(number, due_ms, expires_ms, sent_ms, self.refreshed)
            if self.revoked_a_day:
                account.revoked_ms = BEGIN_MS + int(
                    self.dice.expovariate(self.revoked_a_day) * DAY_MS
                )
            self.all.append(account)
            heapq.heappush(self._heap, (due_ms, number))

    def run(self, for_ms: int) -> Fleet:
        """Play on for so long."""
        end_ms = self.now_ms + for_ms
        while True:
            at_ms, number = self._heap[0] if self._heap else (NEVER_MS, 0)
            looks_ms = self._looks_ms()
            if min(at_ms, looks_ms) >= end_ms:
                self.now_ms = end_ms
                return self
            self.now_ms = max(self.now_ms, min(at_ms, looks_ms))
            if looks_ms <= at_ms:
                self._look()
                continue
            heapq.heappop(self._heap)
            account = self.all[number]
            if account.due_ms == at_ms and not account.ended_ms:
                self._refresh(account)

    @property
    def given_up(self) -> list[Account]:
        """Accounts that were given up although their grants live."""
        return [one for one in self.all if one.ended_ms and one.ended_ms < one.revoked_ms]

    @property
    def late(self) -> list[Account]:
        """Accounts whose readers went without a token at some time although their grants live."""
        return [one for one in self.all if self._late_of(one) and one.revoked_ms > self.now_ms]

    def living(self) -> int:
        """How many accounts have a token that lives now."""
        return sum(one.expires_ms > self.now_ms for one in self.all)

    def _late_of(self, account: Account) -> int:
        return account.late_ms + max(0, self.now_ms - account.expires_ms)

    def _looks_ms(self) -> int:
        """When the record is to be looked at next, whatever is due."""
        at_ms = self._told_ms + TELL_MS
        found = self.record.quarantine
        if found is not None and not found.ending_ms:
            at_ms = min(at_ms, max(found.sample_ms, self.now_ms))
        return at_ms

    def _look(self) -> None:
        if self.record.claim_sample(self.now_ms):
            waiting = [
                one
                for one in self.all
                if one.troubles is not None
                and is_refusal(one.troubles.outcome)
                and not one.ended_ms
                and one.due_ms > self.now_ms
            ]
            if waiting:
                self._due(min(waiting, key=lambda one: one.due_ms), self.now_ms)
                self.sampled_ms.append(self.now_ms)
        if self.now_ms - self._told_ms >= TELL_MS:
            self._tell()

    def _due(self, account: Account, at_ms: int) -> None:
        account.due_ms = at_ms
        heapq.heappush(self._heap, (at_ms, account.number))

    def _tell(self) -> None:
        self._told_ms = self.now_ms
        told = self._counts.take("n0", self.now_ms / 1000, 1)
        for event in judgement.fold(self.record, told, self.now_ms):
            self.events[event.kind.removeprefix("provider.")] += 1
        if self.record.rouse_ms:
            self.record.rouse_ms, self.record.roused_ms = 0, self.now_ms
            failing = [one for one in self.all if one.troubles is not None and not one.ended_ms]
            for place, one in enumerate(failing):
                at_ms = self.now_ms + ROUSED_WITHIN_MS * place // len(failing)
                not_before_ms = one.troubles.not_before_ms if one.troubles is not None else 0
                if one.due_ms > at_ms >= not_before_ms:
                    self._due(one, at_ms)

    def _refresh(self, account: Account) -> None:
        held = self.record.hold
        if held is not None and not throttle.claim(self.record, "n0", self.now_ms, 40_000):
            self._due(account, max(held.until_ms, self.now_ms + 1000))
            return
        self.requests += 1
        revoked = account.revoked_ms <= self.now_ms
        verdict = REFUSED if revoked else self.answers(account, self.now_ms)
        troubles = account.troubles or RefreshTroubles()
        witness = account.troubles is None
        refused = troubles.refusals > 0 or is_refusal(troubles.outcome)
        kind, now_s = kind_of(verdict), self.now_ms / 1000
        if kind == "ok" and witness and self.record.quarantine is None and held is None:
            self._counts.count_well(now_s)
        else:
            ended = Ended("", verdict, witness, witness and account.refreshed, refused)
            self._counts.count(ended, kind, now_s)
            if held is not None:
                self._counts.untold.probe = throttle.shows_well(self.record, kind)
            self._tell()
        if kind == "ok":
            self._went_well(account)
        else:
            self._failed(account, verdict, troubles)

    def _went_well(self, account: Account) -> None:
        account.late_ms += max(0, self.now_ms - account.expires_ms)
        account.troubles, account.refreshed, account.stored_ms = None, True, self.now_ms
        account.expires_ms, due_ms = due_times.due_after(
            self.now_ms, self.life_s, self.provider, self.dice.random()
        )
        self._due(account, due_ms)

    def _failed(self, account: Account, verdict: Verdict, troubles: RefreshTroubles) -> None:
        kind = kind_of(verdict)
        assessment = judgement.assess(
            self.record, kind, self._counts.recent, self.now_ms, 0, silent=False
        )
        step = after_failure(
            Case(
                verdict,
                troubles,
                "single_use",
                0,
                self.now_ms,
                (account.expires_ms - self.now_ms) / 1000,
                dice=self.dice.random(),
                assessment=assessment,
                begun_ms=self.now_ms,
                stored_ms=account.stored_ms,
                refreshed=account.refreshed,
            )
        )
        account.troubles = step.troubles if step.what != "hold" else account.troubles
        if step.what in ("dead", "lost", "stop"):
            account.ended_ms = self.now_ms
        else:
            self._due(account, self.now_ms + max(1, int(step.delay_s * 1000)))
