"""Decides what becomes of an account after a failed refresh, and when it is given up. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from tidewarden.config.error_classes import ErrorClass, class_of
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles, Spare, Step
from tidewarden.tokens.limits.judgement import ALONE, Assessment
from tidewarden.tokens.provider.token_response import Verdict

from .due_times import JITTER_SHARE

Rotation = Literal["none", "rolling", "single_use"]

BACKOFF_S_MAX = 60.0
# Where nobody knows whether the provider is well: it may be back any moment.
ALONE_BACKOFF_S_MAX = 300.0
OWN_BACKOFF_S_MAX = 86_400.0
STOP_PART = 4  # No wait is longer than such a part of the time after which an account is given up.
GIVE_UP_S = 345_600.0
# Between two tries while others that were well meet with the same: who probes is decided elsewhere.
SHARED_S = (2.0, 15.0)
OURS_S = 5.0  # After a failure of our own network.
PATIENCE_S = 30.0  # Between two questions to a node that may hold an answer and does not say.
# Of the access token's life that is left for sending the refresh token again after all.
PATIENCE_FLOOR_S = 60.0
# Between the first refusal that counts and the second; what else concerns giving up follows from
# it.
CONFIRM_S = 600.0
# Refusals that count before an account is given up: 0, 10 and 60 minutes after the first.
CONFIRMATIONS = 3
THIRD_AFTER = 5  # Times as long from the second to the third, from which on it doubles.
LONE_AFTER = 144  # Times as long (a day), where nobody else shows whether the provider is well.
# From when an account's row is stored until all nodes have heard that it was refreshed.
LONE_SLACK_MS = 60_000
JUDGED_SLACK_S = 60.0
WELL_PART = (
    # An account counts as well meanwhile so much of it (a minute) after the first refusal: nodes
    # tell late.
    10
)
# Of the accounts that a quarantine is for one is asked at a time; so long no other.
SAMPLED_S = 86_400.0
# Between two tries of a refused account while its access token lives, at least …
LIVING_S_MIN = 10.0
# … and of one that was well and whose token has expired, doubling: neither counts by itself.
LATE_S = 60.0
# A grace of at most this is used up in its place, past queue and rates.
IN_PLACE_GRACE_S = 60.0
# A grace of at most this is no time in which refusals count: a replica may lag behind.
SHORT_GRACE_S = 3_600.0
# Before a request of unknown outcome is sent again in its place, the first time and the second.
REPLAYS_S = (0.0, 1.0)
MENDED_HERE_S_MAX = 600.0  # Between two tries of what asks nothing of anybody.
ASKED = 8  # Answers that are kept of an account that fails.


def backoff(tries: int, dice: float, *, cap_s: float = BACKOFF_S_MAX) -> float:
    """
    Return the seconds until the next try after ``tries`` failures (1: the first).

    They double from one second, with full jitter.
    """
    return float(min(cap_s, 2.0 ** min(tries - 1, 20)) * (0.5 + dice / 2))


@dataclass(frozen=True, slots=True)
class Patience:
    """Says how long an account is asked about before it is given up."""

    confirm_s: float = CONFIRM_S
    """Seconds between the first refusal that counts and the second."""
    give_up_s: float = GIVE_UP_S
    """Seconds without success, whatever the reason, until an account is given up."""


@dataclass(frozen=True, slots=True)
class Case:
    """Holds the facts by which a failed refresh is judged."""

    verdict: Verdict
    troubles: RefreshTroubles
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
    """The judgement of the client's other accounts."""
    give_up_s: float = GIVE_UP_S
    begun_ms: int = 0
    """When its intent was written, unix milliseconds: the request began no sooner. 0: now."""
    stored_ms: int = 0
    """When its row was stored, for it was refreshed well or put, unix milliseconds."""
    refreshed: bool = False
    """The pair came from a refresh of ours, so the grant was well."""

    @property
    def error(self) -> ErrorClass:
        """Return the class of the failure."""
        return class_of(self.verdict.outcome)

    @property
    def doubt_ms(self) -> int:
        """Return when the first request of unknown outcome began."""
        return self.troubles.doubt_ms or self.begun_ms or self.now_ms

    @property
    def safe_until_ms(self) -> int:
        """
        Return until when the refresh token may be sent again after an unknown outcome.

        0: it may be sent at any time.
        """
        return 0 if self.rotation != "single_use" else self.doubt_ms + int(self.grace_s * 1000)

    @property
    def saving(self) -> bool:
        """
        Return whether only another request within the grace can still save the account.

        An earlier request may have used its refresh token up.
        """
        return self.troubles.doubts > 0 and not self.used_spare and self.now_ms < self.safe_until_ms

    @property
    def sampled(self) -> bool:
        """
        Return whether the case has the failure for which the client is quarantined.

        All accounts that meet with it make up a small sample.
        """
        evidence, error, of_client = self.assessment, self.error, self.verdict.scope == "client"
        if evidence.shared and of_client:
            return False  # All are held for it.
        if evidence.shared and (error.ends_grant or (evidence.sampled and error.kind == "erring")):
            return True
        return evidence.quarantined and (error.ends_grant or of_client)

    @property
    def released(self) -> bool:
        """
        Return whether an operator has declared the client's refusals to be true.

        That says nothing of an account that was well since then.
        """
        return self.stored_ms <= self.assessment.released_ms > 0

    @property
    def lone(self) -> bool:
        """
        Return whether no other account of the client is asked, or was well since this one was well.

        This account was well when it was last refreshed or put. If no account at all was ever well,
        the client's settings may be wrong, and that ends no account.
        """
        well_ms = self.assessment.well_ms
        return well_ms <= self.stored_ms + LONE_SLACK_MS and bool(
            well_ms or not self.assessment.others
        )


def after_failure(case: Case) -> Step:
    """
    Decide what to do after a failed refresh.

    The step has troubles of its own; those of the case stay as they are.
    """
    verdict, error = case.verdict, case.error
    if verdict.scope == "ours":
        wait = OURS_S * (1 + case.dice)
        if case.left_s > 0:
            wait = min(wait, max(1.0, case.left_s / 2))
        return Step("retry", wait, _noted(case, wait, counts=False))
    if error.retry == "untouched":
        return _untouched(case, OURS_S * (1 + case.dice))
    if error.retry == "half_life" and case.left_s > 0:
        return _untouched(case, max(1.0, case.left_s / 2))  # Nothing is the matter with it.
    if verdict.scope == "unknown" and not case.used_spare:
        return _after_unknown(case)
    if case.saving:
        return _within_grace(case)
    if case.sampled:
        wait = _sampled_wait_s(case)
        troubles = _noted(case, wait, counts=False)
        troubles.clustered = True  # Should it end, and they be refused anew, it takes a day.
        return Step("retry", wait, troubles)
    if case.assessment.shared:
        return _after_shared(case)
    if error.mended_here and case.used_spare:  # A spare that nobody can read is none.
        troubles = _noted(case, case.confirm_s)
        troubles.spare_refused = True
        return Step("retry", case.confirm_s, troubles)
    if error.ends_grant:
        return _after_refusal(case)
    wait = _own_wait_s(case)
    return _later(case, _noted(case, wait), wait)


def _untouched(case: Case, wait_s: float) -> Step:
    """
    Try later, and note nothing, unless a doubt that was found in an open intent would be lost.
    """
    old = case.troubles
    if old.tries or old.doubts or old.first_ms:
        return Step("retry", wait_s, _noted(case, wait_s, counts=False))
    return Step("hold", wait_s, old)


def _after_shared(case: Case) -> Step:
    """
    Try again soon, because other accounts meet with the same failure.

    The queue is held as long as it lasts, and nothing counts against the account.
    """
    wait = _shared_wait_s(case)
    if case.verdict.scope == "client":
        return _untouched(case, wait)
    return Step("retry", wait, _noted(case, wait, counts=False))


def _shared_wait_s(case: Case) -> float:
    least, most = SHARED_S
    lasts_s = (case.now_ms - (case.troubles.first_ms or case.now_ms)) / 1000
    wait = min(most, max(least, lasts_s / 4)) * (0.5 + case.dice)
    if case.verdict.retry_after_s is not None:
        wait = max(wait, case.verdict.retry_after_s * (1 + case.dice * JITTER_SHARE))
    return wait


def _own_wait_s(case: Case) -> float:
    """
    Return the seconds until the next try after a failure of the account's own that is no refusal.

    They double to a day. During a quarantine they do not: a few are well, and many fail by turns,
    so nothing shows that it is the account's own.
    """
    verdict, old = case.verdict, case.troubles
    if case.error.mended_here:
        return backoff(old.tries + 1, case.dice, cap_s=MENDED_HERE_S_MAX)
    others_are_well = old.first_ms and case.assessment.well_ms > old.first_ms
    if others_are_well and not case.assessment.quarantined:
        cap_s = OWN_BACKOFF_S_MAX
    else:  # Grows with the time that it has lasted, so that a short outage is noticed at once.
        cap_s = min(
            ALONE_BACKOFF_S_MAX,
            max(BACKOFF_S_MAX, (case.now_ms - (old.first_ms or case.now_ms)) / 12_000),
        )
    wait = backoff(
        old.tries + 1, case.dice, cap_s=min(cap_s, max(BACKOFF_S_MAX, case.give_up_s / STOP_PART))
    )
    if verdict.retry_after_s is not None:
        # Never before it; a second's spread after it.
        return max(wait, verdict.retry_after_s) + case.dice
    return max(wait, case.error.least_wait_s * (1 + case.dice))


def _later(
    case: Case, troubles: RefreshTroubles, wait_s: float, spare: Spare = "keep", until_ms: int = 0
) -> Step:
    """
    Try once more later, or stop if the account has been asked in vain for too long.

    Then it is given up although its grant may live.
    """
    if troubles.own_ms < case.give_up_s * 1000 or case.assessment.quarantined:
        troubles.next_ms = case.now_ms + int(wait_s * 1000)
        return Step("retry", wait_s, troubles, spare, until_ms=until_ms)
    troubles.stopped, troubles.next_ms = True, 0
    return Step("stop", 0, troubles, spare)


def replay_after(case: Case) -> float | None:
    """
    Return after how many seconds an open request's refresh token is sent again in place.

    The request's outcome is unknown. None: the token is not sent in place. It is sent so only if
    that is safe, and a time or two, or until a short grace ends: a task that waits in the queue, or
    for a rate, may wait past the grace.
    """
    old, verdict = case.troubles, case.verdict
    if case.saving and case.grace_s <= IN_PLACE_GRACE_S and verdict.scope != "unknown":
        held = case.assessment.shared and case.error.kind != "limited"
        wait = math.inf if held else _within_grace(case).delay_s
        return wait if case.now_ms + wait * 1000 < case.safe_until_ms else None
    if (
        verdict.scope != "unknown"
        or case.used_spare
        or case.assessment.shared
        or verdict.retry_after_s is not None
    ):
        return None
    if old.refusals or old.doubts >= len(REPLAYS_S):
        return None
    wait = REPLAYS_S[old.doubts] * (0.5 + case.dice)
    return (
        wait if not case.safe_until_ms or case.now_ms + wait * 1000 < case.safe_until_ms else None
    )


def after_doubt(case: Case) -> RefreshTroubles:
    """Return the troubles of an account whose request is sent again in its place."""
    noted = _noted(case, 0, counts=False)
    return _doubting(case, noted) if case.verdict.scope == "unknown" else noted


def _after_unknown(case: Case) -> Step:
    """
    Try again soon, before the grace of the old token ends if it has one.

    Without a grace it is tried again, too, because the provider may have processed nothing.
    """
    wait = _own_wait_s(case)
    if case.assessment.shared:
        wait = _sampled_wait_s(case) if case.sampled else _shared_wait_s(case)
    until_ms, left_ms = case.safe_until_ms, case.safe_until_ms - case.now_ms
    if until_ms and left_ms > 0:
        wait = max(min(wait, max(1.0, left_ms / 2000)), case.verdict.retry_after_s or 0)
    saved_ms = until_ms if wait * 1000 < left_ms else 0
    troubles = _doubting(case, _noted(case, wait, counts=not case.assessment.shared))
    if case.assessment.shared:
        return Step("retry", wait, troubles, until_ms=saved_ms)
    return _later(case, troubles, wait, until_ms=saved_ms)


def _within_grace(case: Case) -> Step:
    """
    Try again soon, before all others, whatever was answered: only that can save the grant.

    The account is asked after half of the time that has passed since the request, or after half of
    the rest of the grace if that is less. A time to wait that was named is kept if it ends within
    the grace.
    """
    left_s = (case.safe_until_ms - case.now_ms) / 1000
    short, ends = case.grace_s <= SHORT_GRACE_S, case.error.ends_grant
    if short:
        wait = min(case.confirm_s, _uncounted_wait_s(case)) if ends else BACKOFF_S_MAX
        step = Step("retry", wait, _noted(case, wait, counts=False))
    elif ends:
        step = _after_refusal(case)
    else:
        wait = _own_wait_s(case)
        step = _later(case, _noted(case, wait), wait)
    if step.what != "retry":
        return step
    lasts_s = (case.now_ms - case.doubt_ms) / 1000
    wait = min(step.delay_s, max(1.0, min(left_s, lasts_s) / 2))
    if (named_s := case.verdict.retry_after_s or 0) < left_s:
        wait = max(wait, named_s)
    troubles = replace(step.troubles, next_ms=case.now_ms + int(wait * 1000))
    return Step("retry", wait, troubles, step.spare, until_ms=case.safe_until_ms)


def _doubting(case: Case, troubles: RefreshTroubles) -> RefreshTroubles:
    troubles.doubts += 1
    troubles.doubt_ms = case.doubt_ms
    return troubles


def apart_s(counted: int, confirm_s: float = CONFIRM_S) -> float:
    """Return the seconds from the last of so many counting refusals to the next that counts."""
    if counted < 2:
        return confirm_s * counted
    return confirm_s * min(LONE_AFTER, THIRD_AFTER * 2.0 ** min(counted - 2, 10))


def _sampled_wait_s(case: Case) -> float:
    """
    Return the seconds until the next try of an account that a quarantine is for.

    While the quarantine goes on, the account whose turn it is is asked sooner, see
    :meth:`.ClientRecord.claim_sample`.
    """
    wait = SAMPLED_S if case.assessment.sampled else min(case.confirm_s, _uncounted_wait_s(case))
    return max(wait, case.verdict.retry_after_s or 0)


def _after_refusal(case: Case) -> Step:
    """
    Count a refusal that comes long enough after the last one that did.

    So a provider's bad hour ends no account.
    """
    old = case.troubles
    troubles = _noted(case, 0)
    troubles.clustered = old.clustered or case.assessment.clustered
    if case.used_spare:
        troubles.spare_refused = True
    elif (
        case.now_ms - old.confirmed_ms >= apart_s(old.refusals, case.confirm_s) * 1000
        or case.released
    ):
        troubles.refusals += 1
        troubles.confirmed_ms = case.now_ms
        troubles.refused_ms = old.refused_ms or case.now_ms
    if case.has_spare and not troubles.spare_refused:
        return Step("retry", 0, troubles)  # The spare is next; see use_spare().
    spare: Spare = "drop" if troubles.spare_refused else "try"
    if _confirmed(case, troubles):
        return _given_up(case, troubles, spare)
    ahead_ms = troubles.confirmed_ms - case.now_ms
    wait = ahead_ms / 1000 + apart_s(troubles.refusals, case.confirm_s) * (
        1 + case.dice * JITTER_SHARE
    )
    wait = min(wait, _uncounted_wait_s(case))
    wait = max(wait, case.verdict.retry_after_s or 0, min(1.0, case.confirm_s))
    return _later(case, troubles, wait, spare)


def _uncounted_wait_s(case: Case) -> float:
    """
    Return the seconds until a refused account is asked again without that counting.

    So one wrong answer leaves no reader without a token.
    """
    if case.left_s > 0:
        return max(LIVING_S_MIN, case.left_s / 2)
    troubles = case.troubles
    if not case.refreshed and not troubles.clustered:
        return math.inf
    # As long as it has been without a token, so that the pauses double.
    failing_s = (case.now_ms - (troubles.first_ms or case.now_ms)) / 1000
    wait = max(LATE_S, min(-case.left_s, failing_s))
    few = troubles.clustered or troubles.refusals < CONFIRMATIONS
    return min(wait, case.confirm_s) if few else wait


def _confirmed(case: Case, troubles: RefreshTroubles) -> bool:
    """
    Return whether the account's refusals show that its grant has ended.

    They do when there are enough of them, far enough apart, while the provider is known to be well.
    """
    if case.released:
        return troubles.refusals > 0
    if troubles.refusals < CONFIRMATIONS:
        return False
    lasts_s = (case.now_ms - troubles.refused_ms) / 1000
    long = lasts_s >= LONE_AFTER * case.confirm_s
    since_ms = troubles.refused_ms + int(case.confirm_s * 1000 / WELL_PART)
    if case.assessment.well_ms <= since_ms:
        return long and case.lone
    # What others were answered since its first refusal is as much as a client is judged by.
    judged_s = (case.assessment.judged_s - JUDGED_SLACK_S) * case.confirm_s / CONFIRM_S
    return long or (not troubles.clustered and lasts_s >= judged_s)


def _given_up(case: Case, troubles: RefreshTroubles, spare: Spare) -> Step:
    troubles.dead = True
    troubles.next_ms = 0
    # Refused after a request of unknown outcome, where tokens rotate: that was processed, and its
    # answer is lost.
    lost = case.rotation == "single_use" and troubles.doubts > 0 and case.error.token_spent
    if lost:
        troubles.outcome = "lost_rotation"
        came = "cannot be read" if troubles.kept else "never arrived"
        troubles.message = (
            f"an earlier refresh was processed but its answer {came}; consent is needed anew"
        )
    return Step("lost" if lost else "dead", 0, troubles, spare)


def _noted(case: Case, wait_s: float, *, counts: bool = True) -> RefreshTroubles:
    """
    Return the account's troubles with this failure added; ``counts``: it is the account's own
    matter.
    """
    old, verdict = case.troubles, case.verdict
    answer = (case.now_ms, verdict.outcome, verdict.brief)
    return RefreshTroubles(
        tries=old.tries + counts,
        refusals=old.refusals,
        doubts=old.doubts,
        doubt_ms=old.doubt_ms,
        spare_refused=old.spare_refused,
        holder=old.holder,
        kept=old.kept,
        outcome=verdict.outcome,
        message=verdict.message,
        first_ms=old.first_ms or case.now_ms,
        last_ms=case.now_ms,
        next_ms=case.now_ms + int(wait_s * 1000),
        confirmed_ms=old.confirmed_ms,
        asked=(*old.asked, answer)[-ASKED:],
        refused_ms=old.refused_ms,
        own_ms=old.own_ms + (_waited_ms(case) if counts else 0),
        clustered=old.clustered,
        not_before_ms=_not_before_ms(case),
        told=old.told,
    )


def _not_before_ms(case: Case) -> int:
    """Return when the provider lets this account be asked again; 0: it did not say."""
    if case.verdict.retry_after_s is None or case.assessment.shared:
        return 0
    return case.now_ms + int(case.verdict.retry_after_s * 1000)


def _waited_ms(case: Case) -> int:
    """
    Return the milliseconds to add to the time for which the account has failed.

    Time past its next try does not count, because the account lay in a queue that was held. Only
    half of the time counts if no other account was refreshed meanwhile: the provider may have been
    away.
    """
    old = case.troubles
    if case.error.mended_here:
        return 0
    waited_ms = max(0, min(case.now_ms, old.next_ms) - old.last_ms)
    return waited_ms if case.assessment.well_ms > old.last_ms else waited_ms // 2


def saved_until_ms(provider: Provider, troubles: RefreshTroubles, now_ms: int) -> int:
    """
    Return until when sending the refresh token again can save an account in doubt; 0: no haste.

    It is 0, too, when that time is over.
    """
    until_ms = troubles.doubt_ms + int(provider.grace_s * 1000)
    return (
        until_ms
        if provider.rotation == "single_use" and troubles.doubts and now_ms < until_ms
        else 0
    )


def doubted(troubles: RefreshTroubles, now_ms: int, delay_s: float) -> RefreshTroubles:
    """Mark the account's last outcome as unknown, and note when its next try comes."""
    return replace(
        troubles,
        outcome=troubles.outcome or "unknown",
        first_ms=troubles.first_ms or now_ms,
        last_ms=now_ms,
        next_ms=now_ms + int(delay_s * 1000),
    )


def use_spare(troubles: RefreshTroubles, has_spare: bool) -> bool:
    """
    Return whether the next request should carry the spare's refresh token.

    It should when the row's token was refused and the spare's was not.
    """
    return has_spare and troubles.refusals > 0 and not troubles.spare_refused


def patience(
    rotation: str, grace_s: float, now_ms: int, doubt_ms: int, expires_at_ms: int
) -> float:
    """
    Return the seconds to wait before a refresh token of unknown outcome is sent again; 0: none.

    The wait is for a node that may hold the answer and cannot be asked. If tokens are used once, to
    send one past its grace may end the grant, so the wait lasts while the access token lives.
    """
    left_s = (expires_at_ms - now_ms) / 1000
    if rotation != "single_use" or now_ms - doubt_ms < grace_s * 1000 or left_s <= PATIENCE_FLOOR_S:
        return 0.0
    return min(PATIENCE_S, left_s / 2)


def spare_lives(spare: AccountRow, row: AccountRow, grace_s: float, now_ms: int) -> bool:
    """
    Return whether a spare may still work.

    The spare that the row's own pair came from works only within the grace after that refresh.
    """
    if (spare.grant, spare.generation + 1) != (row.grant, row.generation):
        return True
    return now_ms - row.stored_ms < grace_s * 1000
