"""
Tells the story of an account or a provider: answers, conclusions, what comes next, advice. Pure.

What was concluded is read from what was kept of it (its row, its troubles, its client's record);
nothing else is claimed. A story is a map, as the doors answer it: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from .facts import Facts
from .table import Row, advised, told, value_of
from .wording import fill, when

Story = dict[str, Any]


def account_story(account: Facts) -> Story:
    """Tell the story of an account from :func:`.facts.account_facts`."""
    client, row, since = account.client, account.row, when(account.since_ms, account.now_ms)
    own, more = [*told("token", account), *own_rows(account)], [*told("account", account)]
    shared = [
        {"code": f"provider_{one.shared}", "text": fill(one.summary, client)} | one.numbers(client)
        for one in told("client", client)
        if one.shared
    ]
    well = [(row.stored_ms, "ok", "a new pair was stored")] if row.refreshed else []
    advice = advised(own + more, account)
    return {
        "name": account.account,
        "state": account.state,
        "since_ms": account.since_ms,
        "now_ms": account.now_ms,
        "summary": f"{account.account} is {account.state} since {since}: {_summary(own, account)}",
        "asked": _asked([*well, *account.troubles.asked]),
        "concluded": [*_findings(own, account), *shared, *_findings(more, account)],
        "next": _account_next(account),
        "advice": [text.replace("PROVIDER/ACCOUNT", account.account) for text in _stopped(advice)],
    }


def own_rows(account: Facts) -> list[Row]:
    """Return the rows about an account's failures; none: it does not fail."""
    return [*told("doubt", account), *told("last", account)] if account.found else []


def account_advice(account: Facts) -> str:
    """Advise what can be done about an account that fails; empty: nothing need be done."""
    return ". ".join(advised(own_rows(account), account))


def provider_story(client: Facts) -> Story:
    """Tell the story of a provider from :func:`.facts.client_facts`."""
    rows, counted = [*told("client", client)], [*told("accounts", client)]
    nodes = [(node, [*told("node", node)]) for node in client.quiet]
    state = next(row for row in rows if row.state)
    asked = [(client.well_ms, "ok", "an account was refreshed")] if client.well_ms else []
    asked += [(one.last_ms, one.outcome, f"{one.brief} ({one.node})") for one in client.quiet]
    concluded = [_findings(rows, client), *(_findings(found, node) for node, found in nodes)]
    advice = [text for node, found in nodes for text in advised(found, node)]
    return {
        "name": client.name,
        "state": fill(state.state, client),
        "since_ms": value_of(state.since, client) if state.since else 0,
        "now_ms": client.now_ms,
        "summary": _summary(rows, client),
        "asked": _asked(sorted(asked, key=itemgetter(0))),
        "concluded": [*chain(*concluded, _findings(counted, client))],
        "next": _next("client next", client),
        "advice": _stopped(dict.fromkeys([*advice, *advised(rows + counted, client)])),
    }


def away_story(away: Facts) -> Story:
    """Tell the story of an account or a provider while the store does not answer."""
    rows = [*told("away", away)]
    return {
        "name": away.name,
        "state": "unknown",
        "since_ms": 0,
        "now_ms": away.now_ms,
        "summary": _summary(rows, away),
        "asked": [],
        "concluded": [*_findings(rows, away)],
        "next": _next("away next", away),
        "advice": _stopped(advised(rows, away)),
    }


def _findings(rows: Iterable[Row], facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield what the rows conclude; rows of one code that follow each other make one finding."""
    for code, group in groupby(rows, key=lambda row: row.code):
        same = list(group)
        if text := _text(same, facts):
            found = {"code": code, "text": text}
            for row in same:
                found |= row.numbers(facts)
            yield found


def _text(rows: Iterable[Row], facts: Facts) -> str:
    return " ".join(fill(row.sentence, facts) for row in rows if row.sentence)


def _summary(rows: Iterable[Row], facts: Facts) -> str:
    return next(fill(row.summary, facts) for row in rows if row.summary)


def _asked(answers: Iterable[tuple[int, str, str]]) -> list[dict[str, Any]]:
    return [{"at_ms": at, "outcome": what, "brief": brief} for at, what, brief in answers]


def _stopped(advice: Iterable[str]) -> list[str]:
    return [f"{text}." for text in advice]


def _next(section: str, facts: Facts) -> dict[str, Any]:
    rows = [*told(section, facts)]
    at_ms = value_of(rows[0].at, facts) if rows[0].at else 0
    return {"code": rows[0].code, "text": _text(rows, facts), "at_ms": at_ms}


def _account_next(account: Facts) -> dict[str, Any]:
    """Tell what comes next to an account, after what all its provider's accounts wait for."""
    own = _next("account next", account)
    if own["code"] != "after":
        return own
    shared = _next("client next", account.client)
    return {
        "code": f"after_{shared['code']}",
        "text": f"{shared['text']} {own['text']}",
        "at_ms": max(shared["at_ms"], own["at_ms"]),
    }
