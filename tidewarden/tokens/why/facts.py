"""
Names the facts of an account, and of a provider's client, for the rows of :mod:`.table`. Pure.

All times are unix milliseconds of the store's clock, also those of the client's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from tidewarden.config.error_classes import class_of
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles
from tidewarden.tokens.limits import judgement, throttle
from tidewarden.tokens.limits.answer_counts import Silence, total
from tidewarden.tokens.limits.client_record import SAMPLE_MS, ClientRecord, Hold, Quarantine
from tidewarden.tokens.policy import account_state, due_times, failures
from tidewarden.tokens.provider import advice

Facts = SimpleNamespace
"""Values by the names that the table's conditions and sentences use."""
ANSWERED_MS = 600_000
"""A story tells of a provider's answers of this last time."""
LISTED = ("late", "failing", "stopped", "dead", "lost_rotation")
_T = TypeVar("_T", bound=msgspec.Struct)


def client_facts(
    provider: Provider,
    record: ClientRecord,
    clock_ms: int,
    lag_ms: int,
    accounts: Mapping[str, int] | None = None,
) -> Facts:
    """
    Name what all nodes know of our client at a provider.

    Args:
        clock_ms: of the leases' clock; ``lag_ms``: how far unix time is ahead of it.
        accounts: how many are in which state, and ``total``; None or empty: not known.
    """
    record, now_ms = _unix(record, lag_ms), clock_ms + lag_ms
    rests, hold = record.rest_ms > now_ms, record.hold or Hold()
    jump = record.quarantine or Quarantine()
    error = hold.outcome or "held"
    state = "held" if error == "held" else advice.standing(error)
    probed = bool(hold.claim) and hold.claim_ms > now_ms
    quiet = _quiet(provider, record, now_ms)
    return Facts(
        provider=provider,
        name=provider.name,
        now_ms=now_ms,
        record=record,
        busy=rests or record.hold is not None or bool(quiet["quiet"]),
        well_ms=record.well_ms,
        hold=record.hold,
        rests=rests,
        held=rests or record.hold is not None,
        held_until_ms=max(hold.until_ms, record.rest_ms if rests else 0),
        hold_error=error,
        hold_state=state,
        hold_words=advice.STANDING["refusing" if hold.kind == "client" else "erring"],
        hold_said=hold.brief or error,
        hold_advice=advice.of_provider(provider, error),
        probed=probed,
        probe_ms=now_ms if probed else max(hold.until_ms, now_ms),
        pause_ms=throttle.pause_ms(
            hold.kind, hold.probes + throttle.PROBES, now_ms - hold.since_ms
        ),
        rest_said=record.rest_brief or "HTTP 429",
        quarantine=record.quarantine,
        jump="" if record.quarantine is None or jump.by_operator else jump.kind,
        quarantine_said=jump.brief or jump.outcome or "in any words",
        quarantine_next_ms=_quarantine_next_ms(jump, now_ms),
        sample=judgement.SAMPLE,
        sample_every_ms=SAMPLE_MS,
        calm_ms=judgement.QUARANTINE_CALM_MS,
        rate=record.rate,
        rate_advice=advice.of_provider(provider, "rate_limited"),
        share=throttle.LIMITED_SHARE,
        **quiet,
        **_answered(record, now_ms),
        **_counted(accounts or {}),
    )


def _quarantine_next_ms(jump: Quarantine, now_ms: int) -> int:
    """Return when a quarantine ends, or asks the next of its accounts; 0: at no known time."""
    if jump.by_operator:
        return 0
    return (
        jump.ending_ms + judgement.QUARANTINE_CALM_MS
        if jump.ending_ms
        else max(jump.sample_ms, now_ms)
    )


def _quiet(provider: Provider, record: ClientRecord, now_ms: int) -> dict[str, object]:
    """Gather the troubles that nodes met with lately and that are no account's matter."""
    silences = sorted(record.silences.items())
    heard = [(node, one) for node, one in silences if now_ms - one.last_ms < judgement.HEARD_MS]
    quiet = [
        Facts(
            node=node,
            since_ms=one.since_ms,
            last_ms=one.last_ms,
            outcome=one.outcome,
            brief=one.brief,
            said=one.brief or one.outcome,
            asks=one.outcome != "journal",
            advice=advice.of_provider(provider, one.outcome),
            now_ms=now_ms,
        )
        for node, one in heard
    ]
    latest = max((one for _, one in heard), key=lambda one: one.last_ms, default=Silence())
    since_ms = min((one.since_ms for _, one in heard), default=0)
    waits = [one.next_ms for _, one in heard]
    met = ", ".join(f"{one.node} ({one.said})" for one in quiet)
    return {
        "quiet": quiet,
        "blocked": bool(quiet) and not any(one.asks for one in quiet),
        "nodes": " and ".join(one.node for one in quiet),
        "met": f"{met}; other nodes are answered" if record.well_ms > since_ms else met,
        "latest": latest,
        "quiet_state": advice.standing(latest.outcome),
        "quiet_words": advice.STANDING[advice.standing(latest.outcome)],
        "quiet_since_ms": since_ms,
        "quiet_until_ms": min(waits) if waits and min(waits) > now_ms else 0,
    }


def _answered(record: ClientRecord, now_ms: int) -> dict[str, object]:
    """Count the answers of all accounts, by kind."""
    young = [one for one in record.buckets if one.since_ms >= now_ms - ANSWERED_MS]
    sums = total(young)
    rest = sums.answered - sums.ok - sums.limited - sums.erring - sums.client - sums.refused
    kinds = (
        (sums.limited, "asked for less (429)"),
        (sums.erring, "by its errors, of accounts that had been well"),
        (sums.client, "refused our client, of accounts that had been well"),
        (sums.refused, "refused an account that had been well"),
        (rest, "otherwise, of accounts that failed before or for reasons of their own"),
    )
    bad = ", ".join(f"{number:,} {words}" for number, words in kinds if number > 0)
    return {
        "sums": sums,
        "bad": f"; {bad}" if bad else "",
        "window_ms": now_ms - young[0].since_ms if young else ANSWERED_MS,
        "answered": bool(young),
        "limited": total(record.buckets).limited,
    }


def _counted(accounts: Mapping[str, int]) -> dict[str, object]:
    """Count accounts by state."""
    listed = [f"{accounts[state]:,} {state}" for state in LISTED if accounts.get(state)]
    troubled = [state for state in ("failing", "dead", "lost_rotation") if accounts.get(state)]
    return {
        "accounts": accounts,
        "counts": Facts(**{name: accounts.get(name, 0) for name in ("total", *LISTED)}),
        "listed": ", ".join(listed) or "none late, failing or given up",
        "troubled": troubled[0] if troubled else "",
        "likewise": f"; likewise {' and '.join(troubled[1:])}" if troubled[1:] else "",
    }


def account_facts(
    client: Facts,
    account: str,
    row: AccountRow,
    found: RefreshTroubles | None,
    now_ms: int,
    patience: failures.Patience,
) -> Facts:
    """
    Name what is known of an account; ``account``: without its provider's name.

    ``found``: its failures; None: it does not fail.
    """
    provider, troubles = client.provider, found or RefreshTroubles()
    state, error = account_state.state(row, found, now_ms), class_of(troubles.outcome)
    soon_s = due_times.too_soon(provider, row, now_ms)
    soon_ms = now_ms + int(soon_s * 1000) if soon_s > 0 else 0
    own_ms = max(troubles.next_ms if found else row.due_ms, soon_ms)
    readable = troubles.outcome != "unreadable"
    fails, refused = state == "failing", troubles.refusals > 0 or error.ends_grant
    doubtful = troubles.doubts > 0 and readable and troubles.outcome != "lost_rotation"
    only_doubt = doubtful and troubles.outcome == "unknown"
    single_use = provider.rotation == "single_use"
    safe_until_ms = troubles.doubt_ms + int(provider.grace_s * 1000) if single_use else 0
    shared = client.held or client.rate is not None
    alone = not shared and not client.busy and 0 < troubles.first_ms < client.well_ms
    mend = (alone and error.alone_advice) or error.account_advice or error.provider_advice
    return Facts(
        client=client,
        provider=provider,
        name=provider.name,
        account=f"{provider.name}/{account}",
        now_ms=now_ms,
        row=row,
        state=state,
        since_ms=account_state.since_ms(row, found, state),
        lives=bool(row.access) and row.expires_at_ms > now_ms,
        troubles=troubles,
        found=found is not None,
        fails=fails,
        readable=readable,
        grant="its refresh token" if provider.renews else "what it sends",
        consent=advice.after_refusal(provider),
        said=troubles.message or troubles.outcome,
        error=error,
        mend="" if troubles.holder and only_doubt else advice.filled(mend, provider),
        refused=refused,
        failure=error.story if fails and readable and not refused and not only_doubt else "",
        doubtful=doubtful,
        single_use=single_use,
        safe_until_ms=safe_until_ms,
        safe=safe_until_ms > now_ms,
        holder=troubles.holder.rpartition(".")[0],
        limited_alone=error.scope == "account" or not shared,
        **_refusals(client, row, troubles, patience),
        soon_ms=soon_ms,
        short=due_times.is_short(row),
        life_s=(row.expires_at_ms - row.stored_ms) / 1000,
        life_s_min=due_times.LIFE_S_MIN,
        own_ms=own_ms,
        due=own_ms <= now_ms,
        waits=(client.held or client.blocked) and (found is not None or own_ms <= now_ms),
        levelled=provider.level_share > 0 and own_ms > soon_ms,
    )


def _refusals(
    client: Facts, row: AccountRow, troubles: RefreshTroubles, patience: failures.Patience
) -> dict[str, object]:
    """Gather the meaning of the past refusals of an account's grant, and of the next one."""
    confirm_s, counted = patience.confirm_s, troubles.refusals
    released = row.stored_ms <= client.record.released_ms > 0
    began_ms, others = troubles.refused_ms or troubles.first_ms, "unknown"
    if client.well_ms:
        others = "well" if client.well_ms > began_ms else "failing"
    return {
        "needed": failures.CONFIRMATIONS,
        "number": counted + 1,
        "enough": counted >= failures.CONFIRMATIONS,
        "released": released,
        "second_s": failures.apart_s(1, confirm_s),
        "third_s": failures.apart_s(2, confirm_s),
        "lone_s": failures.LONE_AFTER * confirm_s,
        "give_up_s": patience.give_up_s,
        "others": "" if released and counted else others,
        "prospect": _prospect(client, troubles, confirm_s, released=released),
    }


def _prospect(client: Facts, troubles: RefreshTroubles, confirm_s: float, *, released: bool) -> str:
    """Name the consequence of another refusal; empty: it has none."""
    if not (troubles.refusals or class_of(troubles.outcome).ends_grant):
        return ""
    if client.quarantine:
        return "" if client.quarantine.ending_ms else "sampled"
    if released:
        return "last"
    counts_ms = troubles.confirmed_ms + failures.apart_s(troubles.refusals, confirm_s) * 1000
    if troubles.next_ms < counts_ms:
        return "early"
    if troubles.clustered:
        return ""
    return "counts" if troubles.refusals + 1 < failures.CONFIRMATIONS else "others"


def away_facts(provider: Provider, account: str, left_ms: int, reason: str, now_ms: int) -> Facts:
    """
    Name what a node knows of an account while the store does not answer.

    ``account``: its name at its provider; empty: the provider is asked about. ``left_ms``: of the
    token that this node served last of it; 0: it has none that lives.
    """
    return Facts(
        name=f"{provider.name}/{account}" if account else provider.name,
        account=account,
        left_ms=left_ms,
        expires_at_ms=now_ms + left_ms,
        reason=reason,
        orphans=provider.orphan == "refresh",
        now_ms=now_ms,
    )


def _unix(found: _T, lag_ms: int) -> _T:
    """
    Return the record with its times in unix milliseconds, which are ``lag_ms`` ahead; 0 stays 0.
    """
    if lag_ms == 0:  # the store's clock has never stepped
        return found

    def moved(name: str, value: Any) -> Any:
        if isinstance(value, msgspec.Struct):
            return _unix(value, lag_ms)
        if isinstance(value, list):
            return [moved("", one) for one in value]
        if isinstance(value, dict):
            return {key: moved("", one) for key, one in value.items()}
        return value + lag_ms if name.endswith("_ms") and value else value

    fields = {name: moved(name, getattr(found, name)) for name in found.__struct_fields__}
    return msgspec.structs.replace(found, **fields)
