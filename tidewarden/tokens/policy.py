"""
When to refresh, and what to do when that failed: decisions, as plain functions.

No clock, socket or dice in here: times, verdicts and a random fraction are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from tidewarden.config import Provider

from .answers import REFUSALS, Verdict
from .limits.assessment import ALONE, Assessment
from .rows import Row, Troubles

Rotation = Literal["none", "rolling", "single_use"]
State = Literal["fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation", "stale"]
"""``stale``: of a token that was served without asking the store, which was away; no account is in it."""
STATES: tuple[State, ...] = ("fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation")

BACKOFF_S_MAX = 60.0
REJECTED_BACKOFF_S_MAX = 600.0  # An answer that names no cause to give up for is not asked about every minute.
OURS_S = 5.0  # After a failure of our own network.
PATIENCE_S = 30.0  # Between two questions to a node that may hold an answer and does not say.
PATIENCE_FLOOR_S = 60.0  # Of the access token's life that is left for sending the refresh token again after all.
CONFIRM_S = 600.0  # A refused refresh token is tried once more after this; providers have bad ten minutes.
ACCOUNT_LIMITED_S = 30.0  # Least wait after an answer that this account asks too often.
JITTER_SHARE = 0.1  # Of the margin; spreads the accounts that were imported together.


def due_after(sent_ms: int, life_s: float | None, provider: Provider, dice: float) -> tuple[int, int]:
    """
    When a new token expires and when it is refreshed next: ``(expires_at_ms, due_ms)``.

    Life counts from ``sent_ms``, when the request was sent: the provider counts from later, so that is the safe side.
    """
    life = min(life_s if life_s is not None else provider.default_life_s, provider.life_s_max)
    expires_at_ms = sent_ms + int(life * 1000)
    return expires_at_ms, due_before(expires_at_ms, life, provider, dice)


def due_before(expires_at_ms: int, life_s: float, provider: Provider, dice: float) -> int:
    """
    When a token that expires then, and has ``life_s`` left, is refreshed.

    The margin takes at most a third of the life, else a margin of five minutes would refresh a token of one minute
    without pause. ``dice`` (0 to 1) moves the refresh up to a tenth of the margin ahead, never behind. A refresh token
    that dies when idle is used in time, and nothing is refreshed before the provider allows it.
    """
    life = max(0.0, life_s)
    margin = min(provider.margin_of(life), life / 3)
    margin += min(margin, life / 3) * JITTER_SHARE * dice
    if provider.keep_alive_s:
        margin = max(margin, life - provider.keep_alive_s)
    if provider.not_before_s:
        margin = min(margin, provider.not_before_s)
    return expires_at_ms - int(margin * 1000)


def too_soon(provider: Provider, row: Row, now_ms: int) -> float:
    """Seconds until the provider lets this account be refreshed; 0: it may be now, whoever asks."""
    wait_ms = 0.0
    if provider.not_before_s and row.access:
        wait_ms = row.expires_at_ms - provider.not_before_s * 1000 - now_ms
    if provider.account_interval_s and row.refreshed:
        interval_ms = (
            provider.account_interval_s * 1000
        )  # Never longer than that: the clock may have been stepped back since.
        wait_ms = max(wait_ms, min(interval_ms, row.stored_ms + interval_ms - now_ms))
    return max(0.0, wait_ms / 1000)


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

    what: Literal["retry", "hold", "dead", "lost", "stop"]
    """``retry``: later, noted in its troubles. ``hold``: later, nothing noted: it is not the account's matter.
    ``dead``, ``lost``, ``stop``: not by itself any more; lost when its refresh token went with an answer that never
    came, stop when nobody knows that its grant has ended."""
    delay_s: float
    troubles: Troubles
    spare: Literal["keep", "drop", "try"] = "keep"
    """What becomes of a spare. ``try``: one that came meanwhile is tried at once, before the account is given up."""
    event: str = ""
    """What is to be told of it; empty: nothing."""


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
    assessment: Assessment = ALONE
    """What the client's other accounts show."""


def after_failure(case: Case) -> Step:
    """What to do after a failed refresh; the troubles of the step are new ones, those of the case stay as they are."""
    verdict, old = case.verdict, case.troubles
    if verdict.scope == "ours":
        wait = OURS_S * (1 + case.dice)
        if case.left_s > 0:
            wait = min(wait, max(1.0, case.left_s / 2))
        troubles = _noted(case, wait)
        troubles.tries = old.tries  # Frozen: the account has nothing to do with it.
        return Step("retry", wait, troubles)
    if verdict.scope in ("client", "provider"):
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
    if verdict.outcome == "too_early" and case.left_s > 0:
        return Step("hold", max(1.0, case.left_s / 2), old)  # Nothing is the matter with it.
    if verdict.outcome == "unsealable" and case.used_spare:  # A spare that nobody can read is none.
        step = Step("retry", case.confirm_s, _noted(case, case.confirm_s))
        step.troubles.spare_refused = True
        return step
    if verdict.outcome not in REFUSALS:
        wait = backoff(old.tries + 1, case.dice, case.left_s, REJECTED_BACKOFF_S_MAX)
        if verdict.outcome == "account_limited":
            wait = max(wait, ACCOUNT_LIMITED_S * (1 + case.dice))
        return Step("retry", max(wait, verdict.retry_after_s or 0), _noted(case, wait))
    return _after_refusal(case)


def _after_unknown(case: Case) -> Step:
    if case.used_spare:
        # Whether it was used up nobody knows, and there is no other hope: it is tried until it is refused.
        wait = backoff(case.troubles.tries + 1, case.dice, case.left_s)
        wait = max(wait, case.verdict.retry_after_s or 0)
        return Step("retry", wait, _noted(case, wait))
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
    lost = case.rotation == "single_use" and troubles.doubts > 0 and case.verdict.outcome == "invalid_grant"
    if (lost or troubles.refusals >= 2) and not case.assessment.quarantined:
        troubles.dead = True
        troubles.next_ms = 0
        if lost:
            troubles.outcome = "lost_rotation"
            came = "cannot be read" if troubles.kept else "never arrived"
            troubles.message = f"an earlier refresh was processed but its answer {came}; consent is needed anew"
        return Step("lost" if lost else "dead", 0, troubles, spare)
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
        holder=old.holder,
        kept=old.kept,
        outcome=case.verdict.outcome,
        message=case.verdict.message,
        first_ms=old.first_ms or case.now_ms,
        last_ms=case.now_ms,
        next_ms=case.now_ms + int(wait_s * 1000),
    )


def doubted(troubles: Troubles, now_ms: int, delay_s: float) -> Troubles:
    """The troubles of an account of which nothing was found out but that something is doubted."""
    return replace(
        troubles,
        outcome=troubles.outcome or "unknown",
        first_ms=troubles.first_ms or now_ms,
        last_ms=now_ms,
        next_ms=now_ms + int(delay_s * 1000),
    )


def use_spare(troubles: Troubles, has_spare: bool) -> bool:
    """Whether the next request should carry the spare's refresh token: the row's was refused, the spare's was not."""
    return has_spare and troubles.refusals > 0 and not troubles.spare_refused


def patience(rotation: str, grace_s: float, now_ms: int, doubt_ms: int, expires_at_ms: int) -> float:
    """
    Seconds to wait for a node that may hold the answer and cannot be asked, before its refresh token is sent again; 0: not.

    Where tokens are used once, to send it past the grace may end the grant, so it waits while the access token lives.
    """
    left_s = (expires_at_ms - now_ms) / 1000
    if rotation != "single_use" or now_ms - doubt_ms < grace_s * 1000 or left_s <= PATIENCE_FLOOR_S:
        return 0.0
    return min(PATIENCE_S, left_s / 2)


def spare_lives(spare: Row, row: Row, grace_s: float, now_ms: int) -> bool:
    """Whether a spare may still work. One that the row's own pair came from does so within the grace after that alone."""
    if (spare.grant, spare.generation + 1) != (row.grant, row.generation):
        return True
    return now_ms - row.stored_ms < grace_s * 1000


def state(row: Row, troubles: Troubles | None, now_ms: int) -> State:
    """The one word for how an account is: dead before failing before late before expiring before fresh."""
    if troubles is not None:
        if troubles.stopped:
            return "stopped"
        if not troubles.dead:
            return "failing"
        return "lost_rotation" if troubles.outcome == "lost_rotation" else "dead"
    if row.expires_at_ms and row.expires_at_ms <= now_ms:
        return "late"
    return "expiring" if row.due_ms <= now_ms else "fresh"


def since_ms(row: Row, troubles: Troubles | None, state: State) -> int:
    """Since when the account is as :func:`state` says, unix milliseconds."""
    if troubles is not None:
        return troubles.last_ms if troubles.given_up else troubles.first_ms
    return {"late": row.expires_at_ms, "expiring": row.due_ms}.get(state, row.stored_ms)
