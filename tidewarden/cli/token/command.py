"""``tidewarden token …``: accounts in, tokens out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, NOTHING, REFUSED, USAGE, AsJson, DataDir, Url, stop
from tidewarden.cli.output import print_json, print_table

from . import provider
from .connect import connect
from .export import export
from .import_accounts import import_
from .refresh import BATCH, Accounts, refresh
from .view import Account, answers, list_, show, stats
from .why import why

app = typer.Typer(
    help="Import accounts, and get, list and mend their tokens.", no_args_is_help=True
)


app.command("connect")(connect)
app.command("import")(import_)
app.command("export")(export)


@app.command("get")
def get(
    account: Account,
    min_ttl_ms: Annotated[
        int, typer.Option("--min-ttl-ms", min=0, help="Refresh first if less life is left.")
    ] = 0,
    wait_ms: Annotated[
        int, typer.Option("--wait-ms", min=0, help="Wait so long for that refresh.")
    ] = 10_000,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Print an account's access token, ready to be put into a request.

    Example: curl -H "Authorization: Bearer $(tidewarden token get sandbox/user-000001)"
    http://127.0.0.1:7490/me
    """
    with connected(url, data_dir) as node:
        answer = node.call("T.GET", account, "MINTTL", min_ttl_ms, "WAIT", wait_ms)
    names = ("access_token", "token_type", "expires_at_ms", "generation", "state")
    if as_json:
        extras = json.loads(answer[len(names)]) if len(answer) > len(names) else {}
        print_json({"account": account, **dict(zip(names, answer, strict=False)), "extras": extras})
    else:
        typer.echo(answer[0])


app.command("list")(list_)
app.command("show")(show)
app.command("why")(why)
app.command("answers")(answers)
app.add_typer(provider.app, name="provider")


app.command("refresh")(refresh)


@app.command("delete")
def delete(
    accounts: Accounts = None,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Delete accounts with their tokens.

    The grants live on at the provider. Exit code 5 when one was not there.

    Examples:

    tidewarden token delete sandbox/user-000001

    tidewarden token list --state dead --count 100000 --json | jq -r '.accounts[].account' | xargs
    tidewarden token delete
    """
    if not accounts:
        raise stop("name the accounts", USAGE)
    with connected(url, data_dir) as node:
        answers = [
            answer
            for at in range(0, len(accounts), BATCH)
            for answer in node.batch([("T.DELETE", name) for name in accounts[at : at + BATCH]])
        ]
    bad = {
        name: str(answer)
        for name, answer in zip(accounts, answers, strict=True)
        if isinstance(answer, Exception)
    }
    absent = [name for name, answer in zip(accounts, answers, strict=True) if answer == 0]
    for name in absent:
        typer.echo(f"tidewarden: there is no account {name!r}", err=True)
    _ended({"deleted": len(accounts) - len(bad) - len(absent), "absent": len(absent)}, bad, as_json)
    if absent:
        raise typer.Exit(NOTHING)


def _ended(counts: dict[str, int], bad: dict[str, str], as_json: bool) -> None:
    """Print what came of several accounts. Ends the program with 1 if any was refused."""
    for name, reason in bad.items():
        typer.echo(f"tidewarden: refused: {name}: {reason}", err=True)
    if as_json:
        print_json({**counts, "refused": len(bad)})
    else:
        alone = [number for number in counts.values() if number] == [1] and not bad
        first, *others = counts.items()
        words = [
            f"{number:,} {name}"
            for name, number in (first, *((name, n) for name, n in others if n))
        ]
        typer.echo("OK" if alone and first[1] else ", ".join(words))
    if bad:
        raise typer.Exit(REFUSED)


app.command("stats")(stats)


@app.command("presets")
def presets(as_json: AsJson = False) -> None:
    """
    List the known providers, for `preset` of a provider in config.toml.

    Each comes with its source.

    Example: tidewarden token presets --json
    """
    from tidewarden.config.presets import PRESETS  # it reads them

    found = [one for _, one in sorted(PRESETS.items())]
    if as_json:
        print_json([asdict(one) | {"settings": dict(one.settings)} for one in found])
        return
    rows = [
        [one.name, one.settings["rotation"], ", ".join(one.unconfirmed), one.note] for one in found
    ]
    print_table(("preset", "rotation", "not confirmed", "note"), rows)
