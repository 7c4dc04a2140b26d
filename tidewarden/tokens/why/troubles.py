"""
Concludes from an account's own answers: do refusals count, what is in doubt, why was it given up.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidewarden.config.error_classes import class_of
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles
from tidewarden.tokens.policy import account_state, failures

from .conditions import rests
from .story import ClientSeen, Finding, count, span, when

_WHOSE = {"erring": "the provider's matter", "client": "our client's matter"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Holds an account and what is known about it."""

    provider: Provider
    name: str
    """Without its provider's."""
    row: AccountRow
    troubles: RefreshTroubles | None
    client: ClientSeen
    now_ms: int
    confirm_s: float = failures.CONFIRM_S
    give_up_s: float = failures.GIVE_UP_S

    @property
    def account(self) -> str:
        """Its full name."""
        return f"{self.provider.name}/{self.name}"

    @property
    def state(self) -> account_state.State:
        """Its state."""
        return account_state.state(self.row, self.troubles, self.now_ms)

    @property
    def grant(self) -> str:
        """What it sends, in words."""
        return "its refresh token" if self.provider.renews else "what it sends"

    @property
    def held(self) -> bool:
        """Whether all accounts of its client wait."""
        return self.client.record.hold is not None or rests(self.client)

    @property
    def quarantined(self) -> bool:
        """Whether no refusal of its client's accounts counts."""
        return self.client.record.quarantine is not None

    @property
    def released(self) -> bool:
        """
        Whether an operator has said that its refusals are true; see :attr:`failures.Case.released`.
        """
        return self.row.stored_ms <= self.client.unix(self.client.record.released_ms) > 0

    @property
    def well_ms(self) -> int:
        """When an account of its client was refreshed well last, unix; 0: nobody knows of any."""
        return self.client.unix(self.client.record.well_ms)

    @property
    def limited_alone(self) -> bool:
        """Whether it is not known that others are to send fewer requests, too."""
        return self.client.record.rate is None and not self.held

    @property
    def alone(self) -> bool:
        """
        Whether others are known to have been refreshed well since it fails, and nothing holds all.
        """
        since_ms = self.troubles.first_ms if self.troubles is not None else 0
        return self.limited_alone and 0 < since_ms < self.well_ms

    def when(self, unix_ms: int) -> str:
        """A time in words."""
        return when(unix_ms, self.now_ms) if unix_ms else "a time that nobody knows"


def refused(troubles: RefreshTroubles) -> bool:
    """Whether its refresh token was refused, by whichever word."""
    return troubles.refusals > 0 or class_of(troubles.outcome).ends_grant


def answer_of(troubles: RefreshTroubles) -> str:
    """Its last answer in words."""
    return troubles.message or troubles.outcome


def concluded(subject: Subject, troubles: RefreshTroubles) -> list[Finding]:
    """What was concluded from its own answers."""
    if troubles.outcome == "unreadable":
        text = "What its refreshes met with cannot be read; the next one writes it anew."
        return [Finding("unreadable", text)]
    found = []
    if troubles.doubts and troubles.outcome != "lost_rotation":
        found.append(_doubt(subject, troubles))
    if troubles.given_up:
        found.append(_end(subject, troubles))
    elif refused(troubles):
        found.append(_refusals(subject, troubles))
    elif not troubles.doubts or troubles.outcome != "unknown":
        found.append(_failure(subject, troubles))
    if troubles.holder:
        text = (
            f"{troubles.holder} may hold the answer to an open request: it is asked for it before"
            " the refresh token is sent again."
        )
        found.append(Finding("holder", text, {"holder": troubles.holder}))
    if troubles.kept:
        text = (
            f"{troubles.kept} keeps an answer that promised success and could not be read; a"
            " refresh token may be in it."
        )
        found.append(Finding("kept_answer", text, {"node": troubles.kept}))
    if troubles.spare_refused:
        text = "A refresh token that was kept aside was tried, too, and was of no use."
        found.append(Finding("spare_refused", text))
    return found


def _doubt(subject: Subject, troubles: RefreshTroubles) -> Finding:
    provider = subject.provider
    text = (
        f"To {count(troubles.doubts, 'request')}, the first at {subject.when(troubles.doubt_ms)},"
        " no answer came that can be read: it may have been processed or not."
    )
    until_ms = 0
    if provider.rotation != "single_use":
        text += (
            f" A use ends no refresh token of {provider.name} (rotation = {provider.rotation}): it"
            " is sent again."
        )
    else:
        until_ms = troubles.doubt_ms + int(provider.grace_s * 1000)
        until = subject.when(until_ms)
        if until_ms > subject.now_ms:
            text += (
                f" By grace_s the old refresh token works until {until}: it is sent again first."
            )
        elif provider.grace_s:
            text += (
                f" The grace of its old refresh token ended at {until}: if it was processed, the"
                " next"
            )
            text += " try is refused."
        else:
            text += (
                " A refresh token works once there, without a grace: if it was processed, the next"
            )
            text += " try is refused."
    figures = {
        "doubts": troubles.doubts,
        "doubt_ms": troubles.doubt_ms,
        "safe_until_ms": until_ms,
        "rotation": provider.rotation,
    }
    return Finding("unknown_outcome", text, figures)


def _end(subject: Subject, troubles: RefreshTroubles) -> Finding:
    figures = {
        "tries": troubles.tries,
        "refusals": troubles.refusals,
        "first_ms": troubles.first_ms,
        "last_ms": troubles.last_ms,
    }
    first = subject.when(troubles.first_ms)
    if troubles.stopped:
        tries = "1 try" if troubles.tries == 1 else f"{troubles.tries:,} tries"
        text = (
            f"It fails since {first}; {span(troubles.own_ms / 1000)} of that count, without outages"
            f" of the provider, of the {span(subject.give_up_s)} after which it is stopped. {tries}"
            f" brought nothing; the last was answered {answer_of(troubles)}."
        )
        return Finding("stopped", text, figures | {"own_ms": troubles.own_ms})
    if troubles.outcome == "lost_rotation":
        text = (
            f"No answer that can be read came to a request of {subject.when(troubles.doubt_ms)},"
            " and since then its refresh token, which works once, is refused: so that request was"
            " processed, as far as can be told, and the new refresh token went with its answer."
        )
        return Finding("lost_rotation", text, figures | {"doubt_ms": troubles.doubt_ms})
    last = f"{subject.when(troubles.last_ms)}: {answer_of(troubles)}."
    if troubles.refusals < failures.CONFIRMATIONS:
        text = (
            f"{count(troubles.refusals, 'refusal')} counted, the last at {last} Fewer than"
            f" {failures.CONFIRMATIONS} are enough when an operator has released the provider, and"
            " were for earlier versions of this program."
        )
    else:
        text = (
            f"{count(troubles.refusals, 'refusal')} counted, the first at"
            f" {subject.when(troubles.refused_ms)}, the last at {last}"
        )
    return Finding("dead", text, figures | {"refused_ms": troubles.refused_ms})


def _refusals(subject: Subject, troubles: RefreshTroubles) -> Finding:
    name, answer, record = subject.provider.name, answer_of(troubles), subject.client.record
    figures = {
        "refusals": troubles.refusals,
        "needed": failures.CONFIRMATIONS,
        "refused_ms": troubles.refused_ms,
        "confirmed_ms": troubles.confirmed_ms,
        "others_well_ms": subject.well_ms,
    }
    if subject.quarantined:
        text = f"It was answered {answer}. Refusals do not count while {name} is in quarantine"
        counted = f"; {troubles.refusals} of {failures.CONFIRMATIONS} counted before"
        text += f"{counted if troubles.refusals else ''}."
        return Finding("refused_in_quarantine", text, figures)
    if record.hold is not None:
        text = (
            f"It was answered {answer}. That does not count while all accounts of {name} are held."
        )
        return Finding("refused_while_held", text, figures)
    text = (
        f"It was answered {answer}. Refusals that count: {troubles.refusals} of"
        f" {failures.CONFIRMATIONS}"
    )
    text += (
        f", the last at {subject.when(troubles.confirmed_ms)}." if troubles.confirmed_ms else "."
    )
    if subject.released:
        text += (
            f" An operator released {name} at"
            f" {subject.when(subject.client.unix(record.released_ms))}: the next refusal is enough."
        )
        return Finding("refused", text, figures)
    apart = " and ".join(
        span(failures.apart_s(number, subject.confirm_s))
        for number in range(1, failures.CONFIRMATIONS)
    )
    text += (
        f" One counts only so long after the one before ({apart}), lest a bad hour end an account;"
        " it is asked sooner, too."
    )
    day = f"a day ({span(failures.LONE_AFTER * subject.confirm_s)}) of refusals"
    if troubles.clustered:
        text += (
            f" More accounts of {name} than usual were refused beside it, so it takes {day} to give"
            " it up."
        )
    elif troubles.refusals >= failures.CONFIRMATIONS:
        text += (
            " There are enough: it is given up when it is refused once more and what other accounts"
            " were answered since the first shows that the provider is well, or, if that shows"
            f" nothing, after {day}."
        )
    text += f" {_others(subject, troubles.refused_ms or troubles.first_ms)}"
    return Finding("refused", text, figures)


def _others(subject: Subject, since_ms: int) -> str:
    """What other accounts of the client show."""
    name, well_ms = subject.provider.name, subject.well_ms
    if not well_ms:
        return (
            f"No account of {name} is known to have been refreshed well, so nobody knows whose"
            " matter it is."
        )
    well = subject.when(well_ms)
    if well_ms > since_ms:
        return f"Another account of {name} was refreshed well at {well}: {name} itself seems well."
    return (
        f"No account of {name} was refreshed well since it began (the last at {well}): it may be"
        " the provider's matter."
    )


def _failure(subject: Subject, troubles: RefreshTroubles) -> Finding:
    """A failure that is no refusal and leaves nothing in doubt."""
    outcome, answer, name = troubles.outcome, answer_of(troubles), subject.provider.name
    figures = {
        "outcome": outcome,
        "tries": troubles.tries,
        "first_ms": troubles.first_ms,
        "others_well_ms": subject.well_ms,
        "own_ms": troubles.own_ms,
        "give_up_s": subject.give_up_s,
    }
    error = class_of(outcome)
    if error.story == "limited":
        alone = error.scope == "account" or subject.limited_alone
        text = f"It was asked to wait: {answer}. "
        text += "It waits alone: others go on." if alone else f"Many accounts of {name} are."
        return Finding("limited", text, figures)
    if error.story == "unsealable":
        text = f"{subject.grant.capitalize()} cannot be opened here, so nothing is sent: {answer}."
        return Finding("unsealable", text, figures)
    if error.story == "unsent":
        text = f"Nothing was sent, so nothing has happened to its grant: {answer}."
        return Finding("unsent", text, figures)
    if error.story == "misconfigured":
        text = f"No request can be made of [providers.{name}]: {answer}."
        return Finding("misconfigured", text, figures)
    held = subject.client.record.hold
    if held is not None:
        whose = _WHOSE.get(held.kind, "no matter of its own")
        text = (
            f"It was answered {answer}. While all are held that is {whose}: nothing counts"
            " against it."
        )
        return Finding("shared_failure", text, figures)
    text = (
        f"It was answered {answer}. {_others(subject, troubles.first_ms)} It fails since"
        f" {subject.when(troubles.first_ms)}; {span(troubles.own_ms / 1000)} of that count, without"
        f" outages of the provider: it is stopped at {span(subject.give_up_s)}."
    )
    return Finding("own_failure", text, figures)
