"""``tidewarden token …``: accounts in, tokens out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.presets import PRESETS

from .connection import DATA_DIR, NOTHING, AsJson, DataDir, Url, connected, stop
from .output import moment, print_json, print_map, print_table
from .sealed import export
from .token_import import import_

app = typer.Typer(help="Import accounts, and get, list and mend their tokens.", no_args_is_help=True)
Account = Annotated[str, typer.Argument(metavar="PROVIDER/ACCOUNT", help="The account, as sandbox/user-000001.")]


app.command("import")(import_)
app.command("export")(export)


@app.command("get")
def get(
    account: Account,
    min_ttl_ms: Annotated[int, typer.Option("--min-ttl-ms", min=0, help="Refresh first if less life is left.")] = 0,
    wait_ms: Annotated[int, typer.Option("--wait-ms", min=0, help="Wait so long for that refresh.")] = 10_000,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Print an account's access token, ready to be put into a request.

    Example: curl -H "Authorization: Bearer $(tidewarden token get sandbox/user-000001)" http://127.0.0.1:7490/me
    """
    with connected(url, data_dir) as node:
        answer = node.call("T.GET", account, "MINTTL", min_ttl_ms, "WAIT", wait_ms)
    names = ("access_token", "token_type", "expires_at_ms", "generation", "state")
    if as_json:
        print_json({"account": account, **dict(zip(names, answer, strict=False))})
    else:
        typer.echo(answer[0])


@app.command("list")
def list_(
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="Of this provider alone.")] = "",
    state: Annotated[str, typer.Option("--state", help="In this state alone, as failing or dead.")] = "",
    count: Annotated[int, typer.Option("--count", min=1, max=100_000, help="At most so many.")] = 100,
    after: Annotated[str, typer.Option("--after", help="Cursor that the list before ended with.")] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    List accounts with their state; no token is shown.

    Example: tidewarden token list --provider sandbox --state dead
    """
    found: list[dict[str, Any]] = []
    with connected(url, data_dir) as node:
        while True:
            # A page may be short or empty while there is more: a node looks at a bounded number of accounts at a time.
            options = [
                word
                for pair in (("PROVIDER", provider), ("STATE", state), ("AFTER", after))
                if pair[1]
                for word in pair
            ]
            page, after = node.call("T.LIST", *options, "COUNT", min(1000, count - len(found)))
            found += page
            if not after or len(found) >= count:
                break
    if as_json:
        print_json({"accounts": found, "after": after})
        return
    for entry in found:
        entry["why"] = entry.get("message") or entry.get("error")
    columns = ("account", "state", "since_ms", "generation", "expires_at_ms", "next_ms", "tries", "why")
    headings = ("account", "state", "since", "generation", "expires", "next refresh", "tries", "why")
    print_table(headings, [[_when(name, entry.get(name)) for name in columns] for entry in found])
    if after:
        typer.echo(f"more: --after {after}")


@app.command("refresh")
def refresh(account: Account, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Refresh an account's token now rather than when it is due. Does not wait for it.

    Example: tidewarden token refresh sandbox/user-000001
    """
    with connected(url, data_dir) as node:
        node.call("T.REFRESH", account)
    if as_json:
        print_json({"ok": True})
    else:
        typer.echo("OK")


@app.command("delete")
def delete(account: Account, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Delete an account with its tokens. The grant lives on at the provider. Exit code 5 when there is none.

    Example: tidewarden token delete sandbox/user-000001
    """
    with connected(url, data_dir) as node:
        deleted = bool(node.call("T.DELETE", account))
    if as_json:
        print_json({"deleted": deleted})
    if not deleted:
        raise stop(f"there is no account {account!r}", NOTHING)
    if not as_json:
        typer.echo("OK")


@app.command("stats")
def stats(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Count accounts by provider and state.

    Example: tidewarden token stats --json
    """
    with connected(url, data_dir) as node:
        answer = node.call("T.STATS")
    if as_json:
        print_json(answer)
    else:
        print_map(answer)


@app.command("presets")
def presets(as_json: AsJson = False) -> None:
    """
    List the providers that are known, for `preset` of a provider in config.toml, with the source of what is said of each.

    Example: tidewarden token presets --json
    """
    found = [one for _, one in sorted(PRESETS.items())]
    if as_json:
        print_json([asdict(one) | {"settings": dict(one.settings)} for one in found])
        return
    rows = [[one.name, one.settings["rotation"], ", ".join(one.unconfirmed), one.note] for one in found]
    print_table(("preset", "rotation", "not confirmed", "note"), rows)


def _when(name: str, value: Any) -> Any:
    return moment(value) if name.endswith("_ms") else value
