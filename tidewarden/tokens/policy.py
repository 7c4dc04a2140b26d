"""
When to refresh, and what to do when that failed: decisions, as plain functions and one small state machine.

No clock, socket or dice in here: times, verdicts and a random fraction are handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .answers import REFUSALS, Verdict
from .rows import Row, Troubles

Rotation = Literal["none", "rolling", "single_use"]
State = Literal["fresh", "expiring", "late", "failing", "dead", "stale"]
"""``stale``: of a token that was served without asking the store, which was away; no account is in it."""
STATES: tuple[State, ...] = ("fresh", "expiring", "late", "failing", "dead")

LIFE_S_MAX = 366 * 86_400.0  # No provider means more; a row that claims it would never be refreshed again.
BACKOFF_S_MAX = 60.0
REJECTED_BACKOFF_S_MAX = 600.0  # An answer that names no cause to give up for is not asked about every minute.
CONFIRM_S = 600.0  # A refused refresh token is tried once more after this; providers have bad ten minutes.
JITTER_SHARE = 0.1  # Of the margin; spreads the accounts that were imported together.


def due_after(
    sent_ms: int, life_s: float | None, default_life_s: float, margin_s: float, dice: float
) -> tuple[int, int]:
    """
    When a new token expires and when it is refreshed next: ``(expires_at_ms, due_ms)``.

    Life counts from ``sent_ms``, when the request was sent: the provider counts from later, so that is the safe side.
    The margin takes at most a third of the life, else a margin of five minutes would refresh a token of one minute
    without pause. ``dice`` (0 to 1) moves the refresh up to a tenth of the margin ahead, never behind.
    """
    life = min(life_s if life_s is not None else default_life_s, LIFE_S_MAX)
    expires_at_ms = sent_ms + int(life * 1000)
    return expires_at_ms, due_before(expires_at_ms, life, margin_s, dice)


def due_before(expires_at_ms: int, life_s: float, margin_s: float, dice: float) -> int:
    """When a token that expires then, and has ``life_s`` left, is refreshed; see :func:`due_after`."""
    life = max(0.0, life_s)
    margin = min(margin_s, life / 3)
    margin += min(margin, life / 3) * JITTER_SHARE * dice
    return expires_at_ms - int(margin * 1000)


def backoff(tries: int, dice: float, left_s: float, cap_s: float = BACKOFF_S_MAX) -> float:
    """
    Seconds until the next try after ``tries`` failures (1: the first): doubling from one second, with full jitter.

    While the token lives (``left_s`` > 0) no wait is longer than half of what is left of it.
    """
    wait = min(cap_s, 2.0 ** min(tries - 1, 20)) * (0.5 + dice / 2)
    if left_s > 0:
        wait = min(wait, max(1.0, left_s / 2))
    return wait


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of the account after a failure."""

    what: Literal["retry", "hold", "dead"]
    """``retry``: later, noted in its troubles. ``hold``: later, nothing noted: it is not the account's matter."""
    delay_s: float
    troubles: Troubles
    spare: Literal["keep", "drop", "try"] = "keep"
    """What becomes of a spare. ``try``: one that came meanwhile is tried at once, before the account is given up."""
    lost_rotation: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What is known when a refresh has failed."""

    verdict: Verdict
    troubles: Troubles
    rotation: Rotation
    grace_s: float
    now_ms: int
    left_s: float
    """Life left of the stored access token, seconds; 0 or less: expired."""
    used_spare: bool = False
    has_spare: bool = False
    dice: float = 0.5
    confirm_s: float = CONFIRM_S


def after_failure(case: Case) -> Step:
    """What to do after a failed refresh; the troubles of the step are new ones, those of the case stay as they are."""
    verdict, old = case.verdict, case.troubles
    if verdict.scope in ("client", "provider", "ours"):
        wait = backoff(old.tries + 1, case.dice, case.left_s)
        if verdict.retry_after_s is not None:
            wait = max(wait, verdict.retry_after_s) + case.dice  # Never before it; a second's spread after it.
        if verdict.scope == "client":
            # Long, so that the breaker's probe meets another account: it may be this one's matter after all.
            wait = BACKOFF_S_MAX * (0.5 + case.dice / 2)
            return Step("retry", wait, _noted(case, wait)) if old.doubts else Step("hold", wait, old)
        return Step("retry", wait, _noted(case, wait))
    if verdict.scope == "unknown":
        return _after_unknown(case)
    if verdict.outcome not in REFUSALS:
        wait = backoff(old.tries + 1, case.dice, case.left_s, REJECTED_BACKOFF_S_MAX)
        return Step("retry", max(wait, verdict.retry_after_s or 0), _noted(case, wait))
    return _after_refusal(case)


def _after_unknown(case: Case) -> Step:
    if case.used_spare:
        # Whether it was used up nobody knows; it was the lesser hope anyway, and is not tried for ever.
        step = Step("retry", 0, _noted(case, 0), spare="drop")
        step.troubles.spare_refused = True
        return step
    doubt_ms = case.troubles.doubt_ms or case.now_ms
    first = case.troubles.doubts == 0
    safe = case.rotation != "single_use" or case.now_ms - doubt_ms < case.grace_s * 1000
    # The old token still works where it is safe, so it is tried at once. Elsewhere nobody can hold the answer but this
    # node, whose journal has none: the old token is tried too, for if the request was never processed it works.
    wait = 0.0 if first and safe else backoff(case.troubles.tries + 1, case.dice, case.left_s)
    if case.verdict.retry_after_s is not None:
        wait = max(wait, case.verdict.retry_after_s)
    troubles = _noted(case, wait)
    troubles.doubts += 1
    troubles.doubt_ms = doubt_ms
    return Step("retry", wait, troubles)


def _after_refusal(case: Case) -> Step:
    troubles = _noted(case, 0)
    if case.used_spare:
        troubles.spare_refused = True
    else:
        troubles.refusals += 1
    if case.has_spare and not troubles.spare_refused:
        return Step("retry", 0, troubles)  # The spare is next; see use_spare().
    spare: Literal["drop", "try"] = "drop" if troubles.spare_refused else "try"
    # A refused replay after a request of unknown outcome, where tokens rotate: it was processed, and its answer is lost.
    lost = case.rotation == "single_use" and troubles.doubts > 0
    if lost or troubles.refusals >= 2:
        troubles.dead = True
        troubles.next_ms = 0
        if lost:
            troubles.outcome = "lost_rotation"
            troubles.message = "an earlier refresh was processed but its answer never arrived; consent is needed anew"
        return Step("dead", 0, troubles, spare, lost)
    wait = case.confirm_s * (1 + case.dice * JITTER_SHARE)
    troubles.next_ms = case.now_ms + int(wait * 1000)
    return Step("retry", wait, troubles, spare)


def _noted(case: Case, wait_s: float) -> Troubles:
    old = case.troubles
    return Troubles(
        tries=old.tries + 1,
        refusals=old.refusals,
        doubts=old.doubts,
        doubt_ms=old.doubt_ms,
        spare_refused=old.spare_refused,
        outcome=case.verdict.outcome,
        message=case.verdict.message,
        first_ms=old.first_ms or case.now_ms,
        last_ms=case.now_ms,
        next_ms=case.now_ms + int(wait_s * 1000),
    )


def use_spare(troubles: Troubles, has_spare: bool) -> bool:
    """Whether the next request should carry the spare's refresh token: the row's was refused, the spare's was not."""
    return has_spare and troubles.refusals > 0 and not troubles.spare_refused


def state(row: Row, troubles: Troubles | None, now_ms: int) -> State:
    """The one word for how an account is: dead before failing before late before expiring before fresh."""
    if troubles is not None:
        return "dead" if troubles.dead else "failing"
    if row.expires_at_ms and row.expires_at_ms <= now_ms:
        return "late"
    return "expiring" if row.due_ms <= now_ms else "fresh"


class Breaker:
    """
    Holds one provider's client back after answers that concern them all. Times are monotonic seconds.

    Open after an answer of scope *client* (a wrong secret fails every account alike), and for as long as a provider
    that said Retry-After wants it. When the time is over one request probes; its success closes the breaker.
    """

    FIRST_S = 2.0
    MAX_S = 60.0

    def __init__(self) -> None:
        self._until = -math.inf
        self._failures = 0
        self.reason = ""

    def allowed(self, now: float, refreshers: int, in_flight: int) -> int:
        """How many more requests may be begun."""
        if now < self._until:
            return 0
        return max(0, (1 if self._failures else refreshers) - in_flight)

    def opens_in_s(self, now: float) -> float:
        """Seconds until a request is allowed again; 0: now."""
        return max(0.0, self._until - now)

    def note(self, verdict: Verdict, now: float) -> bool:
        """Take a verdict in; True when this one opened a breaker that was closed."""
        if verdict.scope == "client":
            if now < self._until:
                return False  # One of those that were under way when it opened: nothing new.
            self._failures += 1
            self._until = now + min(self.MAX_S, self.FIRST_S * 2 ** min(self._failures - 1, 10))
            self.reason = verdict.outcome
            return self._failures == 1
        if verdict.scope == "provider" and verdict.retry_after_s:
            self._until = max(self._until, now + verdict.retry_after_s)
            return False
        if verdict.scope in ("ok", "account"):
            self._failures = 0
            self.reason = ""
        return False
