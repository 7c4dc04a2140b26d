"""Says how a provider stands with us, from what all nodes know of our client there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewarden.config.load import Provider
from tidewarden.tokens.limits.client_record import ClientRecord
from tidewarden.tokens.provider import advice
from tidewarden.tokens.why.conditions import conditions, silences
from tidewarden.tokens.why.story import ClientSeen


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

    seen = ClientSeen(record, clock_ms, lag_ms)
    found = conditions(provider, seen)
    # A quarantine alone keeps nobody waiting.
    first = next(one for one in found if one.code != "quarantine")
    hold, quarantine, error = record.hold, record.quarantine, first.outcome
    next_ms = max(due_ms, *(one.until_ms for one in found)) if error else 0
    return {
        "grant": provider.grant,
        "failures": hold.probes + 1 if hold is not None else 0,
        "held_until_ms": max(one.until_ms for one in found if one.code != "silent"),
        "state": first.state,
        "since_ms": first.since_ms,
        "next_ms": next_ms if next_ms > seen.now_ms else 0,
        "error": error,
        "message": first.brief,
        "nodes": list(silences(seen)),
        "well_ms": seen.unix(record.well_ms),
        "quarantined_since_ms": seen.unix(quarantine.since_ms) if quarantine is not None else 0,
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
