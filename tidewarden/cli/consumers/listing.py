"""``tidewarden consumers``: who takes and holds tasks, over all nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.cli.connection import NodeLine, connected
from tidewarden.cli.options import DATA_DIR, NOTHING, AsJson, DataDir, Url, stop
from tidewarden.cli.output import cell, moment, print_json, print_table
from tidewarden.cli.task import Queue

COLUMNS = (
    "consumer",
    "user",
    "name",
    "host",
    "pid",
    "holds",
    "since (UTC)",
    "waits in",
    "ended",
)
HELD = ("id", "user", "name", "host", "session or holder", "since (UTC)", "lease ends (UTC)")
PAGE = 500


def consumers(
    queue: Annotated[
        str, typer.Option("--queue", help="Those who hold something, or wait, in this queue.")
    ] = "",
    user: Annotated[str, typer.Option("--user", help="Those of this user.")] = "",
    node: Annotated[str, typer.Option("--node", help="Those of one node.")] = "all",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show who takes and holds tasks, over all nodes: yours, and others' where you administer.

    A consumer is a session with all of its connections, or a connection without one. A node that
    does not answer is named on standard error.

    Example: tidewarden consumers --queue mails
    """
    options = {"QUEUE": queue, "USER": user}
    words = [word for name, value in options.items() if value for word in (name, value)]
    asked: list[str | int] = ["R.CONSUMERS", "NODE", node, "COUNT", PAGE, *words]
    with connected(url, data_dir) as line:
        found, unreachable = _every_page(line, "consumers", *asked)
    tell_unreachable(unreachable)
    if as_json:
        print_json({"consumers": found, "unreachable": unreachable})
    elif found:
        print_table(COLUMNS, [_row(one) for one in found])
    if not found:
        raise stop("there are no consumers", NOTHING)


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    holds = ", ".join(f"{hold['queue']} {hold['tasks']}" for hold in one["holds"])
    since_ms = min((hold["since_ms"] for hold in one["holds"] if hold["since_ms"]), default=0)
    waits, who = cell(one["waits"]), one["name"] or one["address"] or one["door"]
    numbers = (one["id"], one["user"], who, one["host"], one["pid"])
    return (*numbers, holds or "-", moment(since_ms), waits, one["settled"])


def holders(
    queue: Queue,
    task_id: Annotated[str, typer.Option("--id", help="Of this task alone.")] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Show who holds which tasks of a queue, since when, and until when.

    Example: tidewarden queue holders mails --id order-17
    """
    words = ("ID", task_id) if task_id else ()
    with connected(url, data_dir) as line:
        found, unreachable = _every_page(line, "holders", "Q.HOLDERS", queue, *words)
    tell_unreachable(unreachable)
    if as_json:
        print_json({"holders": found, "unreachable": unreachable})
    elif found:
        rows = [
            (
                one["id"],
                one["user"],
                one["name"] or one["address"],
                one["host"],
                one["session"] or one["holder"],
                moment(one["since_ms"]),
                moment(one["lease_end_ms"]),
            )
            for one in found
        ]
        print_table(HELD, rows)
    if not found:
        raise stop("nobody holds anything", NOTHING)


def _every_page(
    line: NodeLine, listed: str, *words: str | int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return all that a question lists, and which nodes are not in it, and why."""
    found: list[dict[str, Any]] = []
    unreachable: dict[str, str] = {}
    behind: tuple[str, ...] = ()
    while True:
        page = line.call(*words, *behind)
        found += page[listed]
        unreachable |= {one["node"]: one["why"] for one in page["unreachable"]}
        if not page["after"]:
            return found, unreachable
        behind = ("AFTER", page["after"])


def tell_unreachable(nodes: dict[str, str]) -> None:
    """Say on standard error which nodes are not in an answer."""
    for name, why in sorted(nodes.items()):
        typer.echo(f"tidewarden: {cell(name)} does not answer: {cell(why)}", err=True)
