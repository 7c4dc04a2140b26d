"""
Explains why an account is as it is: answers, conclusions, evidence, what comes next, advice. Pure.

It says what it was answered, what was concluded from which evidence, what comes next, and what a
person can do. Pure.

What was concluded is read from what was kept of it (its row, its troubles, its client's record);
nothing else is claimed.
"""

from __future__ import annotations

from tidewarden.config.error_classes import class_of
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import RefreshTroubles
from tidewarden.tokens.policy import account_state, due_times, failures
from tidewarden.tokens.provider import advice

from .conditions import blocked, conditions, silences
from .provider import quarantine_advice
from .story import Answered, Finding, Next, Story, when
from .troubles import Subject, answer_of, concluded, refused


def account_story(subject: Subject) -> Story:
    """The story of an account."""
    troubles, state = subject.troubles, subject.state
    since_ms = account_state.since_ms(subject.row, troubles, state)
    findings = [_token(subject)]
    if troubles is not None:
        findings += concluded(subject, troubles)
    findings += _of_client(subject)
    findings += _bounds(subject)
    findings += _consent(subject)
    return Story(
        name=subject.account,
        state=state,
        since_ms=since_ms,
        now_ms=subject.now_ms,
        summary=f"{subject.account} is {state} since {subject.when(since_ms)}: {_summary(subject)}",
        asked=_asked(subject),
        concluded=findings,
        next=_next(subject),
        advice=_advice(subject),
    )


def away_story(provider: Provider, name: str, left_ms: int, reason: str, now_ms: int) -> Story:
    """
    The story of an account, or (``name`` empty) of a provider, while the store does not answer.

    ``left_ms``: of the token that this node served last of the account; 0: it has none that lives.
    """
    whole = f"{provider.name}/{name}" if name else provider.name
    text = f"The store does not answer this node ({reason}): what is known of {whole} lies there."
    findings = [Finding("store_away", text)]
    if left_ms:
        at_ms = now_ms + left_ms
        text = (
            f"The token that this node knew last of it lives until {when(at_ms, now_ms)}; readers"
            " here get it, marked stale."
        )
        findings.append(Finding("stale_token", text, {"expires_at_ms": at_ms}))
    elif name:
        text = "This node knows no living token of it to serve meanwhile; another node may."
        findings.append(Finding("no_token_here", text))
    text = "Nothing is refreshed until the store is back; then whatever is due."
    if provider.orphan == "refresh":
        text = (
            "Nothing is refreshed until the store is back, but what a node has read of late, which"
            ' it refreshes alone (orphan = "refresh").'
        )
    return Story(
        name=whole,
        state="unknown",
        since_ms=0,
        now_ms=now_ms,
        summary=f"How {whole} is cannot be said: the store does not answer.",
        asked=[],
        concluded=findings,
        next=Next("store_away", text),
        advice=["See the store: `tidewarden status`, and the log of this node."],
    )


def _asked(subject: Subject) -> list[Answered]:
    row, troubles = subject.row, subject.troubles
    well = [Answered(row.stored_ms, "ok", "a new pair was stored")] if row.refreshed else []
    if troubles is None:
        return well
    return [*well, *(Answered(*one) for one in troubles.asked)]


def _summary(subject: Subject) -> str:
    """What matters most, as the rest of a sentence."""
    row, troubles, name = subject.row, subject.troubles, subject.provider.name
    if troubles is None:
        if subject.state == "fresh":
            return "nothing is the matter with it."
        held = f"; all accounts of {name} wait" if subject.held else ""
        if not row.access:
            return f"it has no access token yet, and its first refresh is due{held}."
        return f"its refresh is due since {subject.when(row.due_ms)}{held}."
    if troubles.stopped:
        return (
            "it failed for too long and is asked about no more; nobody knows that its grant has"
            " ended."
        )
    if troubles.dead:
        if troubles.outcome == "lost_rotation":
            return "its new refresh token was lost with an answer; a person has to consent again."
        whose = "; a person has to consent again" if subject.provider.renews else ""
        return f"{name} refuses {subject.grant}{whose}."
    if refused(troubles):
        if subject.quarantined:
            return (
                f"{name} refuses it, as it does many accounts just now: no refusal counts"
                " meanwhile."
            )
        return (
            f"{name} refuses {subject.grant}; of the {failures.CONFIRMATIONS} refusals that end an"
            f" account {troubles.refusals} counted so far."
        )
    if troubles.doubts:
        return "a request was sent and no answer came that can be read: it may have been processed."
    story = class_of(troubles.outcome).story
    if story == "unsealable":
        return f"{subject.grant} cannot be opened here."
    if troubles.outcome == "unreadable":
        return "what its refreshes met with cannot be read."
    if story == "unsent":
        return f"nothing can be sent ({answer_of(troubles)})."
    return f"its last refresh was answered {answer_of(troubles)}."


def _token(subject: Subject) -> Finding:
    """What readers have of it."""
    row, at = subject.row, subject.when(subject.row.stored_ms)
    if row.refreshed:
        text = f"Its last refresh went well at {at}"
    else:
        text = f"Its grant was put at {at}, and no refresh of it has gone well since"
    given_up = subject.troubles is not None and subject.troubles.given_up
    if row.access and row.expires_at_ms > subject.now_ms:
        text += f". Readers get its token, which lives until {subject.when(row.expires_at_ms)}."
    else:
        none = (
            f"its token expired at {subject.when(row.expires_at_ms)}"
            if row.access
            else "it has no token"
        )
        text += f". Readers get nothing: {none}{'' if given_up else '; they wait, or get TIMEOUT'}."
    figures = {
        "stored_ms": row.stored_ms,
        "refreshed": row.refreshed,
        "generation": row.generation,
        "expires_at_ms": row.expires_at_ms,
    }
    return Finding("token", text, figures)


def _of_client(subject: Subject) -> list[Finding]:
    """What is the matter with all accounts of its client."""
    found = []
    for one in conditions(subject.provider, subject.client):
        if one.findings:
            whole = one.findings[0]
            text = whole.text if one.code == "quarantine" else one.summary
            found.append(Finding(f"provider_{one.code}", text, whole.figures))
    return found


def _bounds(subject: Subject) -> list[Finding]:
    """What the provider's section says of how often an account may be refreshed."""
    provider = subject.provider
    soon_s = due_times.too_soon(provider, subject.row, subject.now_ms)
    if soon_s <= 0:
        return []
    at_ms = subject.now_ms + int(soon_s * 1000)
    words = [
        f"{name} = {value:g}"
        for name, value in (
            ("not_before_s", provider.not_before_s),
            ("account_interval_s", provider.account_interval_s),
        )
        if value
    ]
    why = f"{', '.join(words)} of [providers.{provider.name}]"
    if due_times.is_short(subject.row):
        life_s = (subject.row.expires_at_ms - subject.row.stored_ms) / 1000
        why = (
            f"{provider.name} says that its token lives for {life_s:g} s, and another is asked for"
            f" after {due_times.LIFE_S_MIN:g} s"
        )
    text = f"It is not refreshed before {subject.when(at_ms)}, whoever asks: {why}."
    return [Finding("not_before", text, {"until_ms": at_ms})]


def _consent(subject: Subject) -> list[Finding]:
    """When its refresh token ends by itself, where that is known."""
    details = subject.row.details
    if not details.consent_expires_ms:
        return []
    at = subject.when(details.consent_expires_ms)
    text = f"Its refresh token ends by itself at {at}"
    if details.consent_end == "moves":
        text += ", and later with each refresh that goes well"
    elif details.consent_end == "fixed":
        text += ": a person has to consent again before that"
    return [Finding("consent_ends", f"{text}.", {"consent_expires_ms": details.consent_expires_ms})]


def _next(subject: Subject) -> Next:
    row, troubles, now_ms = subject.row, subject.troubles, subject.now_ms
    if troubles is not None and troubles.given_up:
        text = "Nothing by itself: nobody asks for it any more."
        if troubles.outcome == "lost_rotation":
            text = "Nothing by itself, unless a node comes back whose journal has its new pair."
        return Next("nothing", text)
    soon_ms = now_ms + int(due_times.too_soon(subject.provider, row, now_ms) * 1000)
    own_ms = max(
        troubles.next_ms if troubles is not None else row.due_ms, soon_ms if soon_ms > now_ms else 0
    )
    if (subject.held or blocked(subject.client)) and (troubles is not None or own_ms <= now_ms):
        shared = conditions(subject.provider, subject.client)[0].next
        own = (
            f"This one is due{f' at {subject.when(own_ms)}' if own_ms > now_ms else ''}, and"
            " follows then."
        )
        return Next(f"after_{shared.code}", f"{shared.text} {own}", max(shared.at_ms, own_ms))
    if own_ms <= now_ms:
        since = f" since {subject.when(own_ms)}" if own_ms else ""
        text = f"It is due{since}: it waits for its turn, or is being asked about just now."
        return Next("turn", text, own_ms)
    at = subject.when(own_ms)
    quarantined = subject.client.record.quarantine
    if troubles is not None and refused(troubles) and quarantined and not quarantined.ending_ms:
        text = (
            f"Those that failed are asked again one by one: it is asked when its turn comes, or at"
            f" {at}."
        )
        return Next("retry", text, own_ms)
    if troubles is not None:
        return Next("retry", f"It is asked about again at {at}{_then(subject, troubles)}.", own_ms)
    sooner = subject.provider.level_share > 0 and own_ms > soon_ms
    text = (
        f"It is refreshed at {at}{', or sooner if too many fall due together' if sooner else ''}."
    )
    return Next("refresh", text, own_ms)


def _then(subject: Subject, troubles: RefreshTroubles) -> str:
    """What another refusal would mean."""
    if not refused(troubles) or subject.quarantined:
        return ""
    if subject.released:
        return "; if it is refused then, it is given up"
    counts_s = failures.apart_s(troubles.refusals, subject.confirm_s)
    if troubles.next_ms < troubles.confirmed_ms + counts_s * 1000:
        return "; a refusal then does not count yet"
    if troubles.clustered:
        return ""
    if troubles.refusals + 1 < failures.CONFIRMATIONS:
        return f"; a refusal then is number {troubles.refusals + 1} of {failures.CONFIRMATIONS}"
    return "; if it is refused then, and others are refreshed well, it is given up"


def _advice(subject: Subject) -> list[str]:
    provider, troubles, state = subject.provider, subject.troubles, subject.state
    name, found = provider.name, []
    excused = (
        troubles is not None and not troubles.given_up and refused(troubles) and subject.quarantined
    )
    if troubles is not None and troubles.holder and not troubles.given_up:
        node = troubles.holder.rpartition(".")[0]
        found.append(f"Bring {node} back if it is away: it may hold the answer.")
    elif troubles is not None and troubles.outcome != "unreadable" and not excused:
        kept = troubles.kept
        text = advice.of_account(provider, state, troubles.outcome, kept, alone=subject.alone)
        if text:
            found.append(f"{text}.".replace("PROVIDER/ACCOUNT", subject.account))
    if subject.held or silences(subject.client):
        found.append(f"See the provider as a whole: `token why {name}`.")
    elif excused and (quarantine := subject.client.record.quarantine) is not None:
        found += quarantine_advice(name, quarantine)
    elif troubles is not None and not troubles.given_up and refused(troubles):
        found.append(
            f"If you know that {name} refuses by mistake: `token provider quarantine {name}` keeps"
            " every account from being given up until it is released."
        )
    elif state == "late":
        found.append(
            "If many are late: more nodes or `refreshers`, or see whether client_rate is too low"
            f" (`token stats`, `token why {name}`)."
        )
    return found
