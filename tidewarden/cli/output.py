"""
Prints results: JSON for programs, tables and lines for people.

Control characters from the wire never reach a terminal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

WIDE = 10_000  # columns where no terminal cuts lines: a line of the table stays one line for grep


def print_json(value: Any, *, err: bool = False) -> None:
    """
    Print one line of JSON, on standard error with ``err``.

    Bytes that are no text become ``{"base64": …}``.
    """
    typer.echo(json.dumps(value, ensure_ascii=False, default=_bytes), err=err)


def print_mark(answers: Iterable[Mapping[str, Any]]) -> None:
    """Say that answers come from a copy that stands in for the primary, where any has the mark."""
    if any("stale_ms" in one for one in answers):
        typer.echo("no majority of the nodes is in reach: this is what the node's own copy has")


def print_answer(as_json: bool, fields: Any, line: Any) -> None:
    """Print ``fields`` as JSON, or ``line`` for people."""
    if as_json:
        print_json(fields)
    else:
        typer.echo(line)


def print_number(name: str, number: Any, as_json: bool) -> None:
    """Print a number that a node answered, in JSON by that name."""
    print_answer(as_json, {name: number}, number)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, as wide as it needs to be when it does not go to a terminal."""
    from rich import box  # most of what verbs say needs none of it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)


def print_map(fields: Mapping[str, Any], indent: int = 0) -> None:
    """Print names and values, aligned; maps inside are indented."""
    width = max((len(str(name)) for name in fields), default=0)
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            typer.echo(f"{' ' * indent}{cell(name)}:")
            print_map(value, indent + 2)
        else:
            typer.echo(f"{' ' * indent}{cell(name):<{width}}  {cell(value)}")


def moment(unix_ms: int | None) -> str:
    """Write a time on the wire as people do, UTC; ``-`` for none."""
    return (
        datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        if unix_ms
        else "-"
    )


def in_trouble(provider: Mapping[str, Any]) -> bool:
    """Tell whether a provider is in trouble, by what T.STATS says of it."""
    return provider.get("state", "answers") != "answers" or bool(
        provider.get("quarantined_since_ms")
    )


def cell(value: Any) -> str:
    """Write ``value`` on one line, printable."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, (list, tuple)):
        value = ", ".join(cell(item) for item in value) or "-"
    if isinstance(value, Mapping):
        value = ", ".join(f"{name}={cell(item)}" for name, item in value.items()) or "-"
    text = str(value)
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    )


def _bytes(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)
