"""
Lists what all accounts of a provider's client meet with, as its record shows it. Pure.

One row each: state, sentence, evidence, and what comes next. ``token why``, ``T.STATS`` and
``T.LIST`` say the same by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidewarden.config.load import Provider
from tidewarden.tokens.limits import judgement, throttle
from tidewarden.tokens.limits.client_record import SAMPLE_MS, Hold, Quarantine
from tidewarden.tokens.limits.evidence import Silence
from tidewarden.tokens.provider import advice

from .story import ClientSeen, Finding, Next, count, span, when

_HELD = {
    "client": "refuses our client",
    "erring": "answers with errors",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """Says what all accounts of a client meet with."""

    code: str
    """``held``, ``rests``, ``silent``, ``quarantine``, ``rate`` or ``well``."""
    state: str
    since_ms: int
    """Unix milliseconds; 0: not known."""
    summary: str
    """A sentence."""
    findings: Sequence[Finding]
    next: Next
    outcome: str = ""
    """The class of failure that it is; empty: none."""
    brief: str = ""
    """What was answered, in a few words."""
    until_ms: int = 0
    """Nothing is sent before it, unix milliseconds; 0: no such time is known."""


def conditions(provider: Provider, seen: ClientSeen) -> list[Condition]:
    """What is so, the most important first; ``well``, which always is, last."""
    found = (make(provider, seen) for make in (_held, _rests, _silent, _quarantine, _rate))
    return [*(one for one in found if one is not None), _well(provider, seen)]


def silences(seen: ClientSeen) -> dict[str, Silence]:
    """The nodes that meet with trouble that is no account's, as far as was said lately."""
    return {
        name: one
        for name, one in sorted(seen.record.silences.items())
        if seen.clock_ms - one.last_ms < judgement.HEARD_MS
    }


def blocked(seen: ClientSeen) -> bool:
    """Whether nodes do not ask, for their journals cannot be written, and nothing else is known."""
    quiet = silences(seen).values()
    return bool(quiet) and all(one.outcome == "journal" for one in quiet)


def rests(seen: ClientSeen) -> bool:
    """Whether the provider named a time before which nothing is sent."""
    return seen.record.rest_ms > seen.clock_ms


def _held(provider: Provider, seen: ClientSeen) -> Condition | None:
    found = seen.record.hold
    if found is None:
        return None
    since_ms, brief = seen.unix(found.since_ms), found.brief or found.outcome
    since = when(since_ms, seen.now_ms)
    whose = "our client is refused, not single accounts"
    if found.kind != "client":
        whose = "it is the provider's matter, no account's"
    well = found.asked - found.failed
    text = (
        f"At {since} {found.failed} of {count(found.asked, 'account')} that had been well,"
        f" asked within half a minute, got {brief}, and {well or 'none'}"
        f" {'was' if well <= 1 else 'were'} refreshed: {whose}. So all wait, and nothing counts"
        " against an account."
    )
    if found.probes:
        text += f" {count(found.probes, 'probe')} since, each by one account, failed, too."
    figures = {
        "kind": found.kind,
        "since_ms": since_ms,
        "until_ms": seen.unix(found.until_ms),
        "outcome": found.outcome,
        "brief": found.brief,
        "failed": found.failed,
        "of": found.asked,
        "probes": found.probes,
    }
    words = _HELD.get(found.kind, "is held")
    return Condition(
        "held",
        advice.standing(found.outcome) if found.outcome else "held",
        since_ms,
        f"{provider.name} {words} ({brief}) since {since}: all its accounts wait.",
        [Finding("hold", text, figures)],
        _next_probe(provider, found, seen),
        found.outcome or "held",
        f"{found.brief} ({found.failed} of {found.asked} accounts that were well)".strip(),
        seen.unix(found.until_ms),
    )


def _rests(provider: Provider, seen: ClientSeen) -> Condition | None:
    if not rests(seen):
        return None
    brief, until_ms = seen.record.rest_brief, seen.unix(seen.record.rest_ms)
    until = when(until_ms, seen.now_ms)
    text = (
        "Every answer of late was a 429 that named a time to wait"
        f" ({brief or 'HTTP 429'}): that is for all."
    )
    after = f"Nothing is sent to {provider.name} before {until}; then all go on."
    return Condition(
        "rests",
        "limiting",
        0,
        f"{provider.name} wants to be left alone until {until}.",
        [Finding("rest", text, {"until_ms": until_ms, "brief": brief})],
        Next("rest", after, until_ms),
        "rate_limited",
        f"each answer says so: {brief}",
        until_ms,
    )


def _silent(provider: Provider, seen: ClientSeen) -> Condition | None:
    quiet = silences(seen)
    if not quiet:
        return None
    since_ms = seen.unix(min(one.since_ms for one in quiet.values()))
    latest = max(quiet.values(), key=lambda one: one.last_ms)
    state, nodes = advice.standing(latest.outcome), " and ".join(quiet)
    findings = [
        Finding(
            "silence",
            f"{node} {'does not ask' if one.outcome == 'journal' else 'meets with trouble'} since"
            f" {when(seen.unix(one.since_ms), seen.now_ms)}: {one.brief or one.outcome}.",
            {
                "node": node,
                "since_ms": seen.unix(one.since_ms),
                "outcome": one.outcome,
                "brief": one.brief,
            },
        )
        for node, one in quiet.items()
    ]
    again = f"{nodes} {'asks' if len(quiet) == 1 else 'ask'} again"
    waits = [seen.unix(one.next_ms) for one in quiet.values() if one.next_ms > seen.clock_ms]
    until_ms = min(waits) if len(waits) == len(quiet) else 0
    if blocked(seen):
        text = f"{again} as soon as the journal can be written, which is tried each second; other"
        after = Next("journal", f"{text} nodes go on.")
    elif until_ms:
        text = f"{again} at {when(until_ms, seen.now_ms)}; any answer lets it go on."
        after = Next("silence", text, until_ms)
    else:
        text = f"{again} as accounts fall due, those that failed after pauses of their own."
        after = Next("silence", text)
    met = ", ".join(f"{node} ({one.brief or one.outcome})" for node, one in quiet.items())
    words = f"{provider.name} {advice.STANDING[state]} since {when(since_ms, seen.now_ms)}"
    met += "; other nodes are answered" if seen.unix(seen.record.well_ms) > since_ms else ""
    return Condition(
        "silent",
        state,
        since_ms,
        f"{words}, as seen by {met}.",
        findings,
        after,
        latest.outcome,
        latest.brief,
        until_ms,
    )


def _quarantine(provider: Provider, seen: ClientSeen) -> Condition | None:
    found = seen.record.quarantine
    if found is None:
        return None
    since_ms = seen.unix(found.since_ms)
    figures = {
        "since_ms": since_ms,
        "refused": found.refused,
        "refused_share": found.refused_share,
        "usual_share": found.usual_share,
        "outcome": found.outcome,
        "brief": found.brief,
        "by_operator": found.by_operator,
        "accepted": found.accepted,
        "sampled": found.sampled,
        "kind": found.kind,
    }
    findings = [Finding("quarantine", _quarantine_text(found, seen), figures)]
    if found.ending_ms:
        ending_ms = seen.unix(found.ending_ms)
        text = (
            f"Since {when(ending_ms, seen.now_ms)} some that had failed are well again, and all"
            " that failed are tried anew."
        )
        findings.append(Finding("quarantine_ending", text, {"ending_ms": ending_ms}))
    elif found.sampled:
        text = (
            f"Of the last {round(found.sampled)} that had failed and were asked again"
            f" {round(found.accepted)} went well."
        )
        figures = {"accepted": found.accepted, "sampled": found.sampled}
        findings.append(Finding("sample", text, figures))
    since = when(since_ms, seen.now_ms)
    return Condition(
        "quarantine",
        "quarantined",
        since_ms,
        f"{provider.name} is in quarantine since {since}: none of its accounts is given up.",
        findings,
        _next_sample(found, seen),
    )


def _rate(provider: Provider, seen: ClientSeen) -> Condition | None:
    found = seen.record.rate
    if found is None:
        return None
    since_ms, sent = seen.unix(found.shrunk_ms), f"{found.per_second:.1f} requests a second"
    text = (
        f"At {when(since_ms, seen.now_ms)} more than {100 * throttle.LIMITED_SHARE:.0f} % of the"
        f" answers, and more than a handful, were 429; {found.peak:.1f} a second were answered"
        f" otherwise. So {sent} are sent."
    )
    figures = {"per_second": found.per_second, "peak": found.peak, "shrunk_ms": since_ms}
    after = f"{sent.capitalize()} go out, which grow by themselves until they hold nothing back."
    return Condition(
        "rate",
        "limiting",
        since_ms,
        f"{provider.name} wants fewer requests: {sent} are sent.",
        [Finding("rate", text, figures)],
        Next("rate", after),
        "rate_limited",
        f"{sent} are answered well",
    )


def _well(provider: Provider, seen: ClientSeen) -> Condition:
    text = f"Nothing is known to be the matter with {provider.name}."
    if seen.record.well_ms:
        at = when(seen.unix(seen.record.well_ms), seen.now_ms)
        text = f"{provider.name} answers; an account was last refreshed well at {at}."
    after = Next("refresh", "Accounts are refreshed as they fall due.")
    return Condition("well", "answers", 0, text, [], after)


def _quarantine_text(found: Quarantine, seen: ClientSeen) -> str:
    """What a quarantine was concluded from, and what it means."""
    since = when(seen.unix(found.since_ms), seen.now_ms)
    if found.by_operator:
        return (
            f"An operator wants nobody given up (quarantine, in force since {since}): no refusal"
            " counts."
        )
    share = f"{100 * found.refused_share:.0f} % of the answers to accounts that had been well"
    many = f"{count(found.refused, 'account')} so far; nobody is given up."
    if found.kind == "erring":
        return (
            f"In quarantine since {since}: {share} were errors"
            f" ({found.brief or found.outcome or 'of any kind'}), while others went well. {many}"
        )
    said = found.brief or found.outcome or "by any word"
    if found.kind == "unproven":
        return (
            f"In quarantine since {since}: no account was ever refreshed well here, and"
            f" {count(found.refused, 'account')} so far {'was' if found.refused == 1 else 'were'}"
            f" refused ({said}), so the settings may be wrong (client_id, token_url), or all grants"
            " another client's; nobody is given up."
        )
    return (
        f"In quarantine since {since}: {share} refused them ({said}); usual is"
        f" {100 * found.usual_share:.1f} %. {many}"
    )


def _next_probe(provider: Provider, found: Hold, seen: ClientSeen) -> Next:
    held_ms = seen.clock_ms - found.since_ms
    longest_s = throttle.pause_ms(found.kind, found.probes + throttle.PROBES, held_ms) / 1000
    after = (
        f"if it is answered well all go on, else another is asked {span(longest_s)} later at most,"
        " or when the provider says"
    )
    if found.claim and found.claim_ms > seen.clock_ms:
        text = f"One account is asked just now, by {found.claim}: {after}."
        return Next("probe", text, seen.now_ms)
    at_ms = seen.unix(max(found.until_ms, seen.clock_ms))
    text = f"At {when(at_ms, seen.now_ms)} one account of {provider.name} is asked: {after}."
    return Next("probe", text, at_ms)


def _next_sample(found: Quarantine, seen: ClientSeen) -> Next:
    if found.by_operator:
        text = (
            "It lasts until an operator releases it; refused accounts are asked again now and then."
        )
        return Next("quarantine", text)
    if found.ending_ms:
        at_ms = seen.unix(found.ending_ms) + judgement.QUARANTINE_CALM_MS
        text = (
            f"The quarantine is over at {when(at_ms, seen.now_ms)}, unless as many fail anew before"
            " that."
        )
        return Next("quarantine", text, at_ms)
    at_ms = max(seen.unix(found.sample_ms), seen.now_ms)
    text = (
        f"Those that failed are asked again one by one, the next at {when(at_ms, seen.now_ms)}: at"
        f" first one in {span(SAMPLE_MS / 1000)}, later more rarely. When"
        f" {judgement.SAMPLE} of them go well, and half of those asked, all are tried anew; when"
        f" no more fail within {span(judgement.QUARANTINE_CALM_MS / 1000)} of that it is over;"
        " time alone does not end it."
    )
    return Next("quarantine", text, at_ms)
