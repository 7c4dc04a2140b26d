"""Draws who sends most, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidewarden.cli.output import cell

FIELDS: dict[str, tuple[str, ...]] = {
    "request": ("user", "verb", "name"),
    "user": ("user",),
    "verb": ("verb",),
    "queue": ("kind", "name"),
    "peer": ("peer",),
}
COLUMNS = {
    "req/s": "requests",
    "in/s": "bytes",
    "out/s": "bytes",
    "err/s": "errors",
    "ms": "",
    "busy": "time",
}
"""A column's head, and the order in which it is the first."""
LINES_AROUND = 6
"""Of head, totals, the table's head and foot."""
SHORT = {"user": 10, "kind": 8, "verb": 12}
"""At most, where a name stands behind it, which takes the room that is left."""
NAME_MIN = 12
KEYS = "sort: r b e t   by: a u v n p   m: minute, s: since start   q: leave"


def lines_for(rows: int) -> int:
    """Return how many rows of the table a terminal has room for."""
    return max(1, min(100, rows - LINES_AROUND))


def render(report: Mapping[str, Any]) -> RenderableType:
    """Render the whole screen."""
    return Group(*head(report), Text(), table(report), Text(), Text(KEYS, "dim", no_wrap=True))


def head(report: Mapping[str, Any]) -> Sequence[Text]:
    """Return the lines that say what is shown, and the totals."""
    since = "the start" if report["over"] == "start" else "a minute ago"
    first = Text("Tidewarden traffic", "bold cyan", no_wrap=True, overflow="ellipsis")
    first.append(
        f"  by {report['by']}, most {report['sort']} first, since {since}"
        f" ({report['seconds']:.0f} s)",
        "not bold default",
    )
    total, seconds = report["total"], max(1.0, report["seconds"])
    second = Text(no_wrap=True, overflow="ellipsis")
    second.append(
        f"{rate(total['requests'] / seconds)} req/s  {size(total['bytes_in'] / seconds)}/s in"
        f"  {size(total['bytes_out'] / seconds)}/s out  ",
    )
    failed = total["errors"] / seconds
    second.append(f"{rate(failed)} err/s", "red" if failed else "")
    second.append(f"   nodes: {' '.join(map(cell, report['nodes'])) or 'none'}")
    for lost in report["unreachable"]:
        second.append(f"  {cell(lost['node'])} is away", "bold red")
    return first, second


def table(report: Mapping[str, Any]) -> Table:
    """Make the table: a row for each of those who send most."""
    fields = FIELDS[report["by"]]
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in fields:
        last = name == fields[-1]
        room: Any = {"ratio": 1, "min_width": NAME_MIN} if last else {"max_width": SHORT[name]}
        made.add_column(name, no_wrap=True, overflow="ellipsis", **room)
    for name, sort in COLUMNS.items():
        style = "reverse" if sort == report["sort"] else ""
        made.add_column(Text(name, style), justify="right", no_wrap=True)
    for row in report["rows"]:
        made.add_row(
            *(Text(cell(row[name]) or "-") for name in fields), *figures(row, report["seconds"])
        )
    made.expand = True
    return made


def figures(row: Mapping[str, Any], seconds: float) -> Sequence[Text]:
    """Return a row's rates. An inexact one has a ``+`` behind it: it may have been more."""
    seconds = max(1.0, seconds)
    error = row.get("error") or {}

    def shown(text: str, *measures: str) -> Text:
        return Text(text + ("+" if any(error.get(name) for name in measures) else ""))

    failed = shown(rate(row["errors"] / seconds), "errors")
    if row["errors"]:
        failed.stylize("red")
    return (
        shown(rate(row["requests"] / seconds), "requests"),
        shown(size(row["bytes_in"] / seconds), "bytes_in"),
        shown(size(row["bytes_out"] / seconds), "bytes_out"),
        failed,
        Text(rate(row["us"] / 1000 / max(1, row["requests"]))),
        shown(rate(row["us"] / 1e6 / seconds), "us"),
    )


def rate(value: float) -> str:
    """Write a number in at most six characters."""
    if value == 0:
        return "0"
    if value >= 1e5:
        return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value / 1e3:.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def size(value: float) -> str:
    """Write bytes in at most seven characters."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
