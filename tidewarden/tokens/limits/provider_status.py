"""
Says how a provider stands with us, from what all nodes know of our client there. Pure.

Plain functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewarden.config.load import Provider
from tidewarden.tokens.provider import advice

from .client_record import ClientRecord
from .judgement import HEARD_MS, said


def figures(
    provider: Provider, record: ClientRecord, clock_ms: int, lag_ms: int, due_ms: int
) -> dict[str, Any]:
    """
    Return the provider's trouble, if any, for ``T.STATS``.

    The counts of its accounts come from elsewhere.

    Args:
        clock_ms: of the leases' clock; ``lag_ms``: how far unix time is ahead of it.
        due_ms: when one of its failing accounts is tried next, unix; 0: none fails, or it is not
            asked.
    """

    def unix(ms: int) -> int:
        return ms + lag_ms if ms else 0

    hold, rate, quarantine = record.hold, record.rate, record.quarantine
    seen = {name: one for name, one in record.silences.items() if clock_ms - one.last_ms < HEARD_MS}
    held_ms = max(
        hold.until_ms if hold is not None else 0, record.rest_ms if record.rest_ms > clock_ms else 0
    )
    error, message, since_ms = "", "", 0
    if hold is not None:
        error, message, since_ms = (
            hold.outcome or "held",
            said(record).partition(" ")[2],
            hold.since_ms,
        )
    elif seen:
        latest = max(seen.values(), key=lambda one: one.last_ms)
        error, message, since_ms = (
            latest.outcome,
            latest.brief,
            min(one.since_ms for one in seen.values()),
        )
    elif record.rest_ms > clock_ms:
        error, message = "rate_limited", f"each answer says so: {record.rest_brief}"
    elif rate is not None:
        error, message = (
            "rate_limited",
            f"{rate.per_second:.1f} requests a second are answered well",
        )
        since_ms = rate.shrunk_ms
    waits = [one.next_ms for one in seen.values() if one.next_ms > clock_ms]
    next_try_ms = unix(max(held_ms, min(waits) if len(waits) == len(seen) > 0 else 0))
    next_ms = max(next_try_ms, due_ms) if error else 0
    return {
        "grant": provider.grant,
        "failures": hold.probes + 1 if hold is not None else 0,
        "held_until_ms": unix(held_ms),
        "state": advice.standing(error) if error else "answers",
        "since_ms": unix(since_ms),
        "next_ms": next_ms if next_ms > clock_ms + lag_ms else 0,
        "error": error,
        "message": message,
        "nodes": sorted(seen),
        "well_ms": unix(record.well_ms),
        "quarantined_since_ms": unix(quarantine.since_ms) if quarantine is not None else 0,
        "advice": advice.of_provider(provider, error) if error else "",
    }


def beside(account: dict[str, Any], stands: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return what ``T.LIST`` adds to an account of a provider in trouble.

    An account that is due waits for the provider, and for no reason of its own.
    """
    held = stands["error"] and (stands["held_until_ms"] or stands["nodes"])
    if held and account["state"] in ("expiring", "late", "failing"):
        account["next_ms"] = max(account["next_ms"], stands["next_ms"])
        if not account["error"]:
            account |= {name: stands[name] for name in ("error", "message", "advice")}
    return account
