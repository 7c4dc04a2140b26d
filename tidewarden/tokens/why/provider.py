"""
Explains why a provider's accounts are refreshed as they are: answers, conclusions, what comes next.

Only what the client's record holds is told: nothing is claimed of answers that nobody kept. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidewarden.config.load import Provider
from tidewarden.tokens.limits.client_record import Quarantine
from tidewarden.tokens.limits.evidence import total
from tidewarden.tokens.limits.throttle import LIMITED_SHARE
from tidewarden.tokens.provider import advice

from .conditions import Condition, conditions, rests, silences
from .story import Answered, ClientSeen, Finding, Story, count, span, when

Accounts = Mapping[str, int]
"""How many are in which state, and ``total``."""
ANSWERED_MS = 600_000
"""What a story tells of a provider's answers came within so long."""
LISTED = ("late", "failing", "stopped", "dead", "lost_rotation")


def provider_story(provider: Provider, seen: ClientSeen, accounts: Accounts) -> Story:
    """
    The story of a provider.

    Args:
        accounts: how many are in which state; empty: not known.
    """
    found = conditions(provider, seen)
    findings = [_answered(seen), *(one for condition in found for one in condition.findings)]
    findings += [*_limits(provider, seen), *_later(seen), *_accounts(accounts)]
    return Story(
        name=provider.name,
        state=found[0].state,
        since_ms=found[0].since_ms,
        now_ms=seen.now_ms,
        summary=found[0].summary,
        asked=_asked(seen),
        concluded=findings,
        next=found[0].next,
        advice=_advice(provider, seen, found, accounts),
    )


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


def _answered(seen: ClientSeen) -> Finding:
    from_ms = seen.clock_ms - ANSWERED_MS
    young = [bucket for bucket in seen.record.buckets if bucket.since_ms >= from_ms]
    if not young:
        text = (
            f"No answer of the last {span(ANSWERED_MS / 1000)} is on record; what goes well is put"
            " on record each half minute."
        )
        return Finding("no_answers", text, {"window_ms": ANSWERED_MS})
    sums, passed_ms = total(young), seen.clock_ms - young[0].since_ms
    figures = {
        "window_ms": passed_ms,
        "answered": sums.answered,
        "ok": sums.ok,
        "limited": sums.limited,
        "erring": sums.erring,
        "client_refused": sums.client,
        "refused": sums.refused,
    }
    rest = sums.answered - sums.ok - sums.limited - sums.erring - sums.client - sums.refused
    kinds = (
        (sums.limited, "asked for less (429)"),
        (sums.erring, "by its errors, of accounts that had been well"),
        (sums.client, "refused our client, of accounts that had been well"),
        (sums.refused, "refused an account that had been well"),
        (rest, "otherwise, of accounts that failed before or for reasons of their own"),
    )
    bad = [f"{number:,} {words}" for number, words in kinds if number > 0]
    text = (
        f"Of {count(sums.answered, 'answer')} in the last {span(passed_ms / 1000)}"
        f" {sums.ok:,} were good"
    )
    return Finding("answers", f"{text}{'; ' + ', '.join(bad) if bad else ''}.", figures)


def _limits(provider: Provider, seen: ClientSeen) -> list[Finding]:
    record, found = seen.record, []
    limited = total(record.buckets).limited
    if limited and record.rate is None and not rests(seen):
        text = (
            f"{count(limited, 'answer')} of 429 did not slow all down, for that takes a handful and"
            f" more than {100 * LIMITED_SHARE:.0f} % at a time: only the accounts that got them"
            " wait."
        )
        found.append(Finding("isolated_limits", text, {"limited": limited}))
    if provider.client_rate:
        text = (
            f"At most {provider.client_rate:g} requests a second are sent, by client_rate of"
            f" [providers.{provider.name}]."
        )
        found.append(Finding("client_rate", text, {"per_second": provider.client_rate}))
    return found


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
    figures = {name: accounts.get(name, 0) for name in ("total", *LISTED)}
    return [Finding("accounts", f"{text}.", figures)]


def _advice(
    provider: Provider, seen: ClientSeen, conditions_met: Sequence[Condition], accounts: Accounts
) -> list[str]:
    name, quarantine = provider.name, seen.record.quarantine
    codes = {one.code for one in conditions_met}
    outcomes = {one.outcome for one in silences(seen).values()}
    outcomes |= {one.outcome for one in conditions_met if one.code == "held"}
    if codes >= {"rate"} and "held" not in codes:
        outcomes.add("rate_limited")
    found = [f"{advice.of_provider(provider, outcome)}." for outcome in sorted(outcomes)]
    if codes & {"held", "rests"}:
        text = f"Mended? `token provider probe {name}` asks now"
        if quarantine is None:  # Else a release says that what was refused is true.
            text += f"; `token provider release {name}` lets all go on at once"
        found.append(f"{text}.")
    elif quarantine is not None:
        found += quarantine_advice(name, quarantine)
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
