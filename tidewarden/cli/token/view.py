"""
``tidewarden token list|show|stats``: shows accounts and providers.

It says why they are so, since when, and what can be done.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.cli.connection import NodeLine, connected
from tidewarden.cli.options import DATA_DIR, NOTHING, AsJson, DataDir, Url
from tidewarden.cli.output import in_trouble, moment, print_json, print_map, print_mark, print_table

Account = Annotated[
    str, typer.Argument(metavar="PROVIDER/ACCOUNT", help="The account, as sandbox/user-000001.")
]
Provider = Annotated[
    str, typer.Option("--provider", metavar="NAME", help="Of this provider alone.")
]
State = Annotated[
    str,
    typer.Option(
        "--state",
        help="In this state alone: fresh, expiring, late, failing, stopped, dead or lost_rotation.",
    ),
]
STATES = ("total", "fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation")

ENDED = ("stopped", "dead", "lost_rotation")
"""States of accounts that are not asked for by themselves any more."""


def pages(
    node: NodeLine, provider: str, state: str, count: int, after: str
) -> tuple[list[dict[str, Any]], str]:
    """
    Return at most ``count`` accounts, and the cursor to go on from.

    A page may be short, or empty, while there is more.
    """
    found: list[dict[str, Any]] = []
    while True:
        options = [
            word
            for pair in (("PROVIDER", provider), ("STATE", state), ("AFTER", after))
            if pair[1]
            for word in pair
        ]
        page, after = node.call("T.LIST", *options, "COUNT", min(1000, count - len(found)))
        found += page
        if not after or len(found) >= count:
            return found, after


def list_(
    provider: Provider = "",
    state: State = "",
    count: Annotated[
        int, typer.Option("--count", min=1, max=100_000, help="At most so many.")
    ] = 100,
    after: Annotated[
        str, typer.Option("--after", help="Cursor that the list before ended with.")
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    List accounts with their state: since when they are so, why, and when they are tried next.

    No token is shown.

    Times are UTC. What can be done about the accounts that fail or are dead stands below the table.

    Example: tidewarden token list --provider sandbox --state dead
    """
    with connected(url, data_dir) as node:
        found, after = pages(node, provider, state, count, after)
    if as_json:
        print_json({"accounts": found, "after": after})
        return
    if not found:
        typer.echo(
            (
                "No account is so."
                if state or provider
                else "There are no accounts yet: tidewarden token import FILE (accounts of a"
                " provider that had another name or client_id: docs/providers.md, Names)"
            ),
            err=True,
        )
        return
    found.sort(key=lambda entry: str(entry["account"]))
    headings = ("account", "state", "since (UTC)", "expires", "next try", "tries", "why")
    print_table(headings, [_row(entry) for entry in found])
    _advise(found)
    print_mark(found)
    if after:
        typer.echo(f"more: --after {after}")


def show(
    account: Account, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Show how one account is: since when, why, when it is tried next, what can be done.

    No token is shown.

    Example: tidewarden token show sandbox/user-000001
    """
    with connected(url, data_dir) as node:
        found = node.call("T.PEEK", account)
        stands = node.call("T.STATS").get(found.get("provider"), {}) if not as_json else {}
    if as_json:
        print_json(found)
        return
    state = str(found.get("state"))
    print_map(
        {
            "account": found.get("account"),
            "state": f"{state} since {moment(found.get('since_ms'))} UTC",
            "why": _why(found) or "-",
            "tries": found.get("tries"),
            "next try": moment(found.get("next_ms")) if found.get("next_ms") else "none by itself",
            "access token": (
                f"expires {moment(found.get('expires_at_ms'))}"
                if found.get("access_token")
                else "none yet"
            ),
            "grant": (
                f"{found.get('grant')}, generation {found.get('generation')}, stored"
                f" {moment(found.get('stored_ms'))}"
            ),
            "scope": found.get("scope") or "-",
            "consent": _consent(found),
            **{name: _pairs(found[name]) for name in ("parameters", "extras") if found.get(name)},
            "provider": _stands(stands),
            "what to do": found.get("advice") or "-",
        }
    )
    if state != "fresh":
        typer.echo(
            f"Why, and what comes next: tidewarden token why {found.get('account')}", err=True
        )


def _consent(found: Mapping[str, Any]) -> str:
    """Say when the refresh token ends by itself, as far as is known."""
    if not found.get("consent_expires_ms"):
        return "no end is known"
    moves = ", later with each refresh" if found.get("consent_moves") else ""
    return f"ends {moment(found['consent_expires_ms'])} UTC{moves}"


def _pairs(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(found.items()))


def answers(
    account: Account, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Show answers of the provider for an account that could not be read.

    One may hold a refresh token. Needs the right token:export.

    Such an answer (a page of HTML, damaged JSON) is kept sealed by the node that got it. If there
    is a refresh token in it, and nothing was stored since, put that: `token import`, or T.PUT. Exit
    code 5 when there is none.

    Example: tidewarden token answers sandbox/user-000001
    """
    with connected(url, data_dir) as node:
        found = node.call("T.ANSWERS", account)
    for one in found["answers"]:
        if isinstance(one["body"], bytes):
            one["body"] = one["body"].decode("utf-8", "backslashreplace")
    if as_json:
        print_json(found)
    else:
        for one in found["answers"]:
            since = (
                "nothing was stored since"
                if one["current"]
                else "another grant or pair was stored since"
            )
            typer.echo(
                f"{moment(one['at_ms'])} UTC, kept by {one['node']}, to generation"
                f" {one['generation']}; {since}:",
                err=True,
            )
            typer.echo(_harmless(one["body"]) if sys.stdout.isatty() else one["body"])
        if found["silent"]:
            typer.echo(
                f"tidewarden: not asked, for they do not answer: {', '.join(found['silent'])}",
                err=True,
            )
        if not found["answers"]:
            typer.echo(
                f"Nothing is kept of {account}; a node keeps the last 256 such answers.", err=True
            )
    if not found["answers"]:
        raise typer.Exit(NOTHING)


def stats(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Count accounts by provider and state, and show how each provider stands.

    It says whether the provider answers, since when not, and why.

    Times are UTC.

    Example: tidewarden token stats --json
    """
    with connected(url, data_dir) as node:
        answer = node.call("T.STATS")
    if as_json:
        print_json(answer)
        return
    headings = (
        "provider",
        "accounts",
        *STATES[1:-1],
        "lost",
        "provider is",
        "since (UTC)",
        "next try",
    )
    print_table(
        headings,
        [
            [
                name,
                *(one.get(state, 0) for state in STATES),
                _standing(one),
                short(one.get("since_ms") or one.get("quarantined_since_ms")),
                following(one.get("next_ms"), str(one.get("state", "answers"))),
            ]
            for name, one in answer.items()
        ],
    )
    print_mark(answer.values())
    for name, one in answer.items():
        if one.get("consents_30d"):
            ending = ", ".join(
                f"{one.get(f'consents_{days}d', 0):,} within {days} days" for days in (30, 7)
            )
            typer.echo(
                f"{name}: consents end of {ending}, {one.get('consents_1d', 0):,} within a day."
            )
        if one.get("advice"):
            typer.echo(f"{name}: {_why(one)}. {one['advice']}.")
        if one.get("quarantined_since_ms"):
            typer.echo(f"{name} is in quarantine: no refusal counts, and nobody is given up.")
    if troubled := [name for name, one in answer.items() if in_trouble(one)]:
        typer.echo(
            "Why, and what comes next:"
            f" {', '.join(f'tidewarden token why {name}' for name in troubled[:5])}"
        )


def _harmless(body: str) -> str:
    """Return what others wrote, without what would steer a terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in body
    )


def short(unix_ms: int | None) -> str:
    """Write a time of these days, UTC, for a column."""
    return moment(unix_ms)[5:] if unix_ms else "-"


def following(unix_ms: int | None, state: str) -> str:
    """Format the next try for a column; an account whose time has come waits for its turn."""
    if not unix_ms:
        return "due" if state not in ("answers", *ENDED) else "-"
    from tidewarden.clock import SystemClock  # asyncio comes with it

    return short(unix_ms) if unix_ms > SystemClock().unix_ms() else "due"


def _standing(one: Mapping[str, Any]) -> str:
    """Say how a provider stands, in a word or two."""
    state = str(one.get("state", "-"))
    if not one.get("quarantined_since_ms"):
        return state
    return "quarantined" if state == "answers" else f"{state}, quarantined"


def _row(entry: Mapping[str, Any]) -> Sequence[Any]:
    times = [short(entry.get(name)) for name in ("since_ms", "expires_at_ms")]
    times.append(following(entry.get("next_ms"), str(entry.get("state"))))
    return [
        entry.get("account"),
        entry.get("state"),
        *times,
        entry.get("tries"),
        _why(entry) or "-",
    ]


def _why(entry: Mapping[str, Any]) -> str:
    return str(entry.get("message") or entry.get("error") or "")


def _stands(stands: Mapping[str, Any]) -> str:
    state = str(stands.get("state") or "-")
    return (
        state
        if state in ("answers", "-")
        else f"{state} since {moment(stands.get('since_ms'))}: {stands.get('message')}"
    )


def _advise(found: Sequence[Mapping[str, Any]]) -> None:
    """
    Print each advice once, with its accounts, on standard error, so that the table stays a table.
    """
    counts = Counter(
        (str(one.get("provider")), str(one.get("state")), str(one["advice"]))
        for one in found
        if one.get("advice")
    )
    for (provider, state, advice), number in counts.items():
        typer.echo(f"{number:,} of {provider} {state}: {advice}.", err=True)
    if counts:
        typer.echo(
            "Why, and what comes next: tidewarden token why PROVIDER/ACCOUNT (or PROVIDER)",
            err=True,
        )
