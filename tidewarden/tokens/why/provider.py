"""
Explains why a provider's accounts are refreshed as they are: answers, conclusions, what comes next.

Pure.

Only what the client's record holds is told: nothing is claimed of answers that nobody kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden.config.load import Provider
from tidewarden.tokens.limits import hold, quarantine, rate
from tidewarden.tokens.limits.client_record import Hold, Quarantine, Silence
from tidewarden.tokens.limits.evidence import total
from tidewarden.tokens.limits.judgement import HEARD_MS
from tidewarden.tokens.provider import advice

from .story import Answered, ClientSeen, Finding, Next, Story, count, span, when

Accounts = Mapping[str, int]
"""How many are in which state, and ``total``."""
ANSWERED_MS = 600_000
"""What a story tells of a provider's answers came within so long."""
_HELD = {
    "client": "refuses our client",
    "erring": "answers with errors",
}
LISTED = ("late", "failing", "stopped", "dead", "lost_rotation")


def provider_story(provider: Provider, seen: ClientSeen, accounts: Accounts) -> Story:
    """
    The story of a provider.

    Args:
        accounts: how many are in which state; empty: not known.
    """
    findings = [
        *_answered(seen),
        *_held(seen),
        *_rested(seen),
        *_rated(provider, seen),
        *_quarantined(seen),
        *_silent(seen),
    ]
    findings += [*_later(seen), *_accounts(accounts)]
    state, since_ms, summary = _summary(provider, seen)
    return Story(
        name=provider.name,
        state=state,
        since_ms=since_ms,
        now_ms=seen.now_ms,
        summary=summary,
        asked=_asked(seen),
        concluded=findings,
        next=what_next(provider, seen),
        advice=_advice(provider, seen, accounts),
    )


def silences(seen: ClientSeen) -> dict[str, Silence]:
    """The nodes that meet with trouble that is no account's, as far as was said lately."""
    return {
        name: one
        for name, one in seen.record.silences.items()
        if seen.clock_ms - one.last_ms < HEARD_MS
    }


def blocked(seen: ClientSeen) -> bool:
    """Whether nodes do not ask, for their journals cannot be written, and nothing else is known."""
    quiet = silences(seen).values()
    return bool(quiet) and all(one.outcome == "journal" for one in quiet)


def rests(seen: ClientSeen) -> bool:
    """Whether the provider named a time before which nothing is sent."""
    return seen.record.rest_ms > seen.clock_ms


def what_next(provider: Provider, seen: ClientSeen) -> Next:
    """What happens to all of the client's accounts next."""
    record, now_ms = seen.record, seen.now_ms
    if record.hold is not None:
        return _next_probe(provider, record.hold, seen)
    if rests(seen):
        at_ms = seen.unix(record.rest_ms)
        return Next(
            "rest",
            f"Nothing is sent to {provider.name} before {when(at_ms, now_ms)}; then all go on.",
            at_ms,
        )
    quiet = silences(seen)
    waits = [seen.unix(one.next_ms) for one in quiet.values() if one.next_ms > seen.clock_ms]
    if blocked(seen):
        text = (
            f"{' and '.join(sorted(quiet))} {'asks' if len(quiet) == 1 else 'ask'} again as soon as"
            " the journal can be written, which is tried each second; other nodes go on."
        )
        return Next("journal", text)
    if quiet:
        nodes = f"{' and '.join(sorted(quiet))} {'asks' if len(quiet) == 1 else 'ask'} again"
        if len(waits) == len(quiet):
            text = f"{nodes} at {when(min(waits), now_ms)}; any answer lets all go on."
            return Next("silence", text, min(waits))
        text = f"{nodes} as accounts fall due, those that failed after pauses of their own."
        return Next("silence", text)
    if record.quarantine is not None:
        return _next_sample(record.quarantine, seen)
    if record.rate is not None:
        text = (
            f"Requests go out at {record.rate.per_second:.1f} a second, which grows by itself until"
            " it holds nothing back."
        )
        return Next("rate", text)
    return Next("refresh", "Accounts are refreshed as they fall due.")


def quarantine_text(found: Quarantine, seen: ClientSeen) -> str:
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
    if found.kind == "unproven":
        return (
            f"In quarantine since {since}: no account was ever refreshed well here, and"
            f" {count(found.refused, 'account')} so far {'was' if found.refused == 1 else 'were'}"
            f" refused ({found.brief or found.outcome or 'by any word'}), so the settings may be"
            " wrong (client_id, token_url), or all grants another client's; nobody is given up."
        )
    return (
        f"In quarantine since {since}: {share} refused them"
        f" ({found.brief or found.outcome or 'by any word'}); usual is"
        f" {100 * found.usual_share:.1f} %. {many}"
    )


def _summary(provider: Provider, seen: ClientSeen) -> tuple[str, int, str]:
    """State, since when, and a sentence: what matters most."""
    name, record, now_ms = provider.name, seen.record, seen.now_ms
    quiet = silences(seen)
    if record.hold is not None:
        state = advice.standing(record.hold.outcome) if record.hold.outcome else "held"
        since_ms = seen.unix(record.hold.since_ms)
        words = _HELD.get(record.hold.kind, "is held")
        return (
            state,
            since_ms,
            f"{name} {words} since {when(since_ms, now_ms)}: all its accounts wait.",
        )
    if quiet:
        latest = max(quiet.values(), key=lambda one: one.last_ms)
        since_ms = seen.unix(min(one.since_ms for one in quiet.values()))
        state = advice.standing(latest.outcome)
        words = advice.STANDING[state]
        return (
            state,
            since_ms,
            (
                f"{name} {words} since {when(since_ms, now_ms)}, as seen by"
                f" {', '.join(sorted(quiet))}."
            ),
        )
    if rests(seen):
        return (
            "limiting",
            0,
            f"{name} wants to be left alone until {when(seen.unix(record.rest_ms), now_ms)}.",
        )
    if record.quarantine is not None:
        since_ms = seen.unix(record.quarantine.since_ms)
        return (
            "quarantined",
            since_ms,
            (
                f"{name} is in quarantine since {when(since_ms, now_ms)}: none of its accounts is"
                " given up."
            ),
        )
    if record.rate is not None:
        since_ms = seen.unix(record.rate.shrunk_ms)
        return (
            "limiting",
            since_ms,
            f"{name} wants fewer requests: {record.rate.per_second:.1f} a second are sent.",
        )
    if record.well_ms:
        return (
            "answers",
            0,
            (
                f"{name} answers; an account was last refreshed well at"
                f" {when(seen.unix(record.well_ms), now_ms)}."
            ),
        )
    return "answers", 0, f"Nothing is known to be the matter with {name}."


def _asked(seen: ClientSeen) -> list[Answered]:
    """What is known of the latest answers, by kind: of a provider they are counted, not kept."""
    record, found = seen.record, []
    if record.well_ms:
        found.append(Answered(seen.unix(record.well_ms), "ok", "an account was refreshed"))
    found += [
        Answered(seen.unix(one.last_ms), one.outcome, f"{one.brief} ({node})")
        for node, one in silences(seen).items()
    ]
    return sorted(found, key=lambda one: one.at_ms)


def _answered(seen: ClientSeen) -> list[Finding]:
    from_ms = seen.clock_ms - ANSWERED_MS
    young = [bucket for bucket in seen.record.buckets if bucket.since_ms >= from_ms]
    if not young:
        text = (
            f"No answer of the last {span(ANSWERED_MS / 1000)} is on record; what goes well is put"
            " on record each half minute."
        )
        return [Finding("no_answers", text, {"window_ms": ANSWERED_MS})]
    sums, since_ms = total(young), young[0].since_ms
    figures = {
        "window_ms": seen.clock_ms - since_ms,
        "answered": sums.answered,
        "ok": sums.ok,
        "limited": sums.limited,
        "erring": sums.erring,
        "client_refused": sums.client,
        "refused": sums.refused,
    }
    kinds = (
        (sums.limited, "asked for less (429)"),
        (sums.erring, "by its errors, of accounts that had been well"),
        (sums.client, "refused our client, of accounts that had been well"),
        (sums.refused, "refused an account that had been well"),
    )
    bad = [f"{number:,} {words}" for number, words in kinds if number]
    rest = sums.answered - sums.ok - sums.limited - sums.erring - sums.client - sums.refused
    if rest > 0:
        bad.append(
            f"{rest:,} otherwise, of accounts that failed before or for reasons of their own"
        )
    text = (
        f"Of {count(sums.answered, 'answer')} in the last {span((seen.clock_ms - since_ms) / 1000)}"
        f" {sums.ok:,} were good"
    )
    return [Finding("answers", f"{text}{'; ' + ', '.join(bad) if bad else ''}.", figures)]


def _held(seen: ClientSeen) -> list[Finding]:
    found = seen.record.hold
    if found is None:
        return []
    since = when(seen.unix(found.since_ms), seen.now_ms)
    whose = "our client is refused, not single accounts"
    if found.kind != "client":
        whose = "it is the provider's matter, no account's"
    well = found.asked - found.failed
    text = (
        f"At {since} {found.failed} of {count(found.asked, 'account')} that had been well,"
        f" asked within half a minute, got {found.brief or found.outcome}, and {well or 'none'}"
        f" {'was' if well <= 1 else 'were'} refreshed: {whose}. So all wait, and nothing counts"
        " against an account."
    )
    if found.probes:
        text += f" {count(found.probes, 'probe')} since, each by one account, failed, too."
    figures = {
        "kind": found.kind,
        "since_ms": seen.unix(found.since_ms),
        "until_ms": seen.unix(found.until_ms),
        "outcome": found.outcome,
        "brief": found.brief,
        "failed": found.failed,
        "of": found.asked,
        "probes": found.probes,
    }
    return [Finding("hold", text, figures)]


def _rested(seen: ClientSeen) -> list[Finding]:
    record = seen.record
    if not rests(seen):
        return []
    text = (
        "Every answer of late was a 429 that named a time to wait"
        f" ({record.rest_brief or 'HTTP 429'}): that is for all."
    )
    return [
        Finding("rest", text, {"until_ms": seen.unix(record.rest_ms), "brief": record.rest_brief})
    ]


def _rated(provider: Provider, seen: ClientSeen) -> list[Finding]:
    record, found = seen.record, []
    limited = total(record.buckets).limited
    if record.rate is not None:
        one = record.rate
        text = (
            f"At {when(seen.unix(one.shrunk_ms), seen.now_ms)} more than {100 * rate.SHARE:.0f} %"
            f" of the answers, and more than a handful, were 429; {one.peak:.1f} a second were"
            f" answered otherwise. So {one.per_second:.1f} requests a second are sent."
        )
        figures = {
            "per_second": one.per_second,
            "peak": one.peak,
            "shrunk_ms": seen.unix(one.shrunk_ms),
        }
        found.append(Finding("rate", text, figures))
    elif limited and not rests(seen):
        text = (
            f"{count(limited, 'answer')} of 429 did not slow all down, for that takes a handful and"
            f" more than {100 * rate.SHARE:.0f} % at a time: only the accounts that got them wait."
        )
        found.append(Finding("isolated_limits", text, {"limited": limited}))
    if provider.client_rate:
        text = (
            f"At most {provider.client_rate:g} requests a second are sent, by client_rate of"
            f" [providers.{provider.name}]."
        )
        found.append(Finding("client_rate", text, {"per_second": provider.client_rate}))
    return found


def _quarantined(seen: ClientSeen) -> list[Finding]:
    found = seen.record.quarantine
    if found is None:
        return []
    figures = {
        "since_ms": seen.unix(found.since_ms),
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
    findings = [Finding("quarantine", quarantine_text(found, seen), figures)]
    if found.ending_ms:
        text = (
            f"Since {when(seen.unix(found.ending_ms), seen.now_ms)} some that had failed are well"
            " again, and all that failed are tried anew."
        )
        findings.append(
            Finding("quarantine_ending", text, {"ending_ms": seen.unix(found.ending_ms)})
        )
    elif found.sampled:
        text = (
            f"Of the last {round(found.sampled)} that had failed and were asked again"
            f" {round(found.accepted)} went well."
        )
        findings.append(
            Finding("sample", text, {"accepted": found.accepted, "sampled": found.sampled})
        )
    return findings


def _silent(seen: ClientSeen) -> list[Finding]:
    return [
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
        for node, one in sorted(silences(seen).items())
    ]


def _later(seen: ClientSeen) -> list[Finding]:
    record, found = seen.record, []
    if record.released_ms:
        text = (
            f"An operator released it at {when(seen.unix(record.released_ms), seen.now_ms)}: until"
            " refusals are as usual, or for a day, one more refusal is enough to give an"
            " account up."
        )
        found.append(Finding("released", text, {"at_ms": seen.unix(record.released_ms)}))
    if record.rouse_ms:
        text = (
            f"Since {when(seen.unix(record.rouse_ms), seen.now_ms)} its failing accounts are tried"
            " anew, spread over some seconds."
        )
        found.append(Finding("tried_anew", text, {"at_ms": seen.unix(record.rouse_ms)}))
    return found


def _accounts(accounts: Accounts) -> list[Finding]:
    if not accounts:
        return []
    listed = [f"{accounts[state]:,} {state}" for state in LISTED if accounts.get(state)]
    total_of = accounts.get("total", 0)
    text = f"It has {count(total_of, 'account') if total_of else 'no accounts'}"
    if total_of:
        text += f"; of these: {', '.join(listed)}" if listed else ", none late, failing or given up"
    return [
        Finding(
            "accounts", f"{text}.", {name: accounts.get(name, 0) for name in ("total", *LISTED)}
        )
    ]


def _next_probe(provider: Provider, found: Hold, seen: ClientSeen) -> Next:
    now_ms, clock_ms = seen.now_ms, seen.clock_ms
    longest_s = (
        hold.pause_ms(found.kind, found.probes + hold.PROBES, clock_ms - found.since_ms) / 1000
    )
    after = (
        f"if it is answered well all go on, else another is asked {span(longest_s)} later at most,"
        " or when the provider says"
    )
    if found.claim and found.claim_ms > clock_ms:
        return Next("probe", f"One account is asked just now, by {found.claim}: {after}.", now_ms)
    at_ms = seen.unix(max(found.until_ms, clock_ms))
    return Next(
        "probe",
        f"At {when(at_ms, now_ms)} one account of {provider.name} is asked: {after}.",
        at_ms,
    )


def _next_sample(found: Quarantine, seen: ClientSeen) -> Next:
    if found.by_operator:
        text = (
            "It lasts until an operator releases it; refused accounts are asked again now and then."
        )
        return Next("quarantine", text)
    if found.ending_ms:
        at_ms = seen.unix(found.ending_ms) + quarantine.CALM_MS
        text = (
            f"The quarantine is over at {when(at_ms, seen.now_ms)}, unless as many fail anew before"
            " that."
        )
        return Next("quarantine", text, at_ms)
    at_ms = max(seen.unix(found.sample_ms), seen.now_ms)
    text = (
        f"Those that failed are asked again one by one, the next at {when(at_ms, seen.now_ms)}: at"
        f" first one in {span(quarantine.SAMPLE_MS / 1000)}, later more rarely. When"
        f" {quarantine.SAMPLE} of them go well, and half of those asked, all are tried anew; when"
        f" no more fail within {span(quarantine.CALM_MS / 1000)} of that it is over; time alone"
        " does not end it."
    )
    return Next("quarantine", text, at_ms)


def _advice(provider: Provider, seen: ClientSeen, accounts: Accounts) -> list[str]:
    record, name = seen.record, provider.name
    outcomes = {one.outcome for one in silences(seen).values()}
    if record.hold is not None:
        outcomes.add(record.hold.outcome)
    if record.rate is not None and record.hold is None:
        outcomes.add("rate_limited")
    found = [f"{advice.of_provider(provider, outcome)}." for outcome in sorted(outcomes)]
    if record.hold is not None or rests(seen):
        text = f"Mended? `token provider probe {name}` asks now"
        if record.quarantine is None:  # Else a release says that what was refused is true.
            text += f"; `token provider release {name}` lets all go on at once"
        found.append(f"{text}.")
    elif record.quarantine is not None:
        found += quarantine_advice(name, record.quarantine)
    troubled = [state for state in ("failing", "dead", "lost_rotation") if accounts.get(state)]
    if troubled:
        found.append(
            f"`token list --state {troubled[0]} --provider {name}` names those that are"
            f" {troubled[0]}, and why"
            + (f"; likewise {' and '.join(troubled[1:])}." if troubled[1:] else ".")
        )
    if accounts.get("stopped"):
        found.append(
            f"`token refresh --state stopped --provider {name}` asks again about those that were"
            " stopped."
        )
    return found


def quarantine_advice(name: str, found: Quarantine) -> list[str]:
    """What an operator can do about a quarantine."""
    if found.kind == "erring" and not found.by_operator:
        return [
            f"Ask whoever runs {name} about these errors; nobody is given up meanwhile, until"
            f" `token provider release {name}` has failures count again."
        ]
    return [
        (
            f"If {name} refuses by mistake: wait, or tell whoever runs it; nobody is given up"
            " meanwhile."
        ),
        (
            "If the refusals are true (our client was deleted there, or many withdrew their"
            f" consent): `token provider release {name}` has each refused account asked once more,"
            " and given up when it is refused."
        ),
    ]
