"""``tidewarden top``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.options import DATA_DIR, USAGE, AsJson, DataDir, Url, stop

SORTS = {"r": "requests", "b": "bytes", "e": "errors", "t": "time"}
SIDES = {"a": "request", "u": "user", "v": "verb", "n": "queue", "p": "peer"}
OVERS = {"m": "minute", "s": "start"}


def top(
    by: Annotated[
        str, typer.Option("--by", help=f"What rows are of: {', '.join(SIDES.values())}.")
    ] = "request",
    sort: Annotated[
        str, typer.Option("--sort", help=f"What is the first: {', '.join(SORTS.values())}.")
    ] = "requests",
    over: Annotated[
        str, typer.Option("--over", help="The last minute, or since each node's start: start.")
    ] = "minute",
    node: Annotated[str, typer.Option("--node", help="One node alone, by its name.")] = "all",
    rows: Annotated[
        int, typer.Option("--top", min=0, max=100, help="How many rows; 0: those that fit.")
    ] = 0,
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, max=60, help="Seconds from look to look.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and end.")] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show who sends most, live: users, verbs, queues, providers, hosts.

    Keys: r b e t sort by requests, bytes, errors, time; a u v n p show requests, users, verbs,
    names, peers; m and s the last minute, or all since the start; q or Ctrl-C leaves.

    What may have been more than is shown has a + behind it; docs/traffic.md says how much.

    It needs the right admin.

    Examples:

    tidewarden top

    tidewarden top --by user --sort bytes

    tidewarden top --by queue --once --json
    """
    for name, value, allowed in (
        ("--by", by, SIDES.values()),
        ("--sort", sort, SORTS.values()),
        ("--over", over, OVERS.values()),
    ):
        if value not in allowed:
            raise stop(f"{name} {value!r}: allowed are {', '.join(allowed)}", USAGE)
    from .watching import Look, show  # it draws

    show(Look(by, sort, over, node, rows), url, data_dir, every_s, once=once, as_json=as_json)
