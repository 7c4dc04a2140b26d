"""``tidewarden audit``: who read, put, exported or deleted which account, and who changed what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.cli.connection import NodeLine, connected
from tidewarden.cli.options import DATA_DIR, AsJson, DataDir, Url
from tidewarden.cli.output import cell, moment, print_json

PAGE = 1000
LOOK_S = 1.0


def audit(
    user: Annotated[str, typer.Option("--user", help="What this user did, alone.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show who read, put, exported or deleted which account, and who changed what.

    The oldest entry comes first; the cluster keeps as many as its configuration says ([audit]).
    With --json each is a line of JSON. Reads and denied requests are counted, and written once a
    minute. Needs the right admin.

    Examples:

    tidewarden audit --user ada

    tidewarden audit --follow --json >> audit.jsonl
    """
    with connected(url, data_dir) as node:
        for entry in _entries(node, user, follow=follow):
            if as_json:
                print_json(entry)
            else:
                typer.echo(line_of(entry))


def _entries(node: NodeLine, user: str, *, follow: bool) -> Iterator[dict[str, Any]]:
    import asyncio

    from tidewarden.clock import SystemClock, sleep

    after = ""
    while True:
        words = [*(("AFTER", after) if after else ()), *(("USER", user) if user else ())]
        found, behind = node.call("R.AUDIT", *words, "COUNT", PAGE)
        yield from found
        if behind == after:
            if not follow:
                return
            asyncio.run(sleep(SystemClock(), LOOK_S))
        after = behind


def line_of(entry: dict[str, Any]) -> str:
    """Write one entry for people."""
    what = [*entry.get("words", []), *_counted(entry.get("accounts", {}))]
    count, named = entry.get("count", 1), sum(entry.get("accounts", {}).values()) or 1
    if count > named:
        what.append(f"({count} in all)")
    outcome = entry.get("outcome", "ok")
    parts = [
        moment(entry["at_ms"]),
        entry["node"],
        entry["user"] or "-",
        entry.get("peer") or "-",
        entry["action"],
        *([] if outcome in ("ok", entry["action"]) else [f"[{outcome}]"]),
        *what,
    ]
    return " ".join(cell(part) for part in parts)


def _counted(accounts: dict[str, int]) -> list[str]:
    return [name if number == 1 else f"{name} x{number}" for name, number in accounts.items()]
