"""Describes the state of a provider, from the record of our client there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tidewarden.tokens.provider import advice
from tidewarden.tokens.why.facts import Facts
from tidewarden.tokens.why.table import Row, sections, value_of
from tidewarden.tokens.why.wording import fill


def figures(client: Facts, due_ms: int) -> dict[str, Any]:
    """
    Return the trouble of a provider (:func:`.facts.client_facts`), if any, for ``T.STATS``.

    ``due_ms``: when one of its failing accounts is tried next, unix; 0: none fails, or it is not
    asked.
    """
    row = next(row for row in _standings() if row.holds(client))
    hold, quarantine, error = client.hold, client.quarantine, fill(row.error, client)
    next_ms = max(due_ms, client.held_until_ms, client.quiet_until_ms) if error else 0
    return {
        "grant": client.provider.grant,
        "failures": hold.probes + 1 if hold is not None else 0,
        "held_until_ms": client.held_until_ms,
        "state": fill(row.state, client),
        "since_ms": value_of(row.since, client) if row.since else 0,
        "next_ms": next_ms if next_ms > client.now_ms else 0,
        "error": error,
        "message": fill(row.message, client).strip(),
        "nodes": [one.node for one in client.quiet],
        "well_ms": client.well_ms,
        "quarantined_since_ms": quarantine.since_ms if quarantine is not None else 0,
        "advice": advice.of_provider(client.provider, error) if error else "",
    }


@cache
def _standings() -> Sequence[Row]:
    """Return the rows for the state of a provider; a quarantine alone keeps no account waiting."""
    return [row for row in sections()["client"][0] if row.state and row.code != "quarantine"]


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
