"""``tidewarden top``."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import redis
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tidewarden.cli.connection import NodeLine, addresses, connected, dial
from tidewarden.cli.options import DATA_DIR, NOTHING, USAGE, AsJson, DataDir, Url, stop
from tidewarden.cli.output import print_json
from tidewarden.clock import SystemClock

from .keys import Keys, terminal_keys
from .view import FIELDS, head, lines_for, render, table

SORTS = {"r": "requests", "b": "bytes", "e": "errors", "t": "time"}
SIDES = {"a": "request", "u": "user", "v": "verb", "n": "queue", "p": "peer"}
OVERS = {"m": "minute", "s": "start"}
LEAVE = ("q", "\x03", "\x04")
WIDE = 200
SILENCE_S = 10.0
"""A node that answers no sooner is left for another; it waits itself for other nodes."""
LOOK_S = 1.0
"""How often it is looked whether a signal came."""
AWAY = Text("No node answers. They are asked again and again; q leaves.", "bold red")


def top(
    by: Annotated[str, typer.Option("--by", help=f"What rows are of: {', '.join(FIELDS)}.")] = (
        "request"
    ),
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
    look = Look(by, sort, over, node, rows)
    console = Console()
    with connected(url, data_dir) as line:
        if as_json:
            print_json(look.ask(line, rows or 20))
        elif once or not console.is_terminal:
            print_once(look.ask(line, rows or 20), console)
        else:
            watch(look, Asking(line, addresses(url, data_dir)), console, every_s)


class Look:
    """Says what is looked at, which keys change."""

    def __init__(self, by: str, sort: str, over: str, node: str, rows: int) -> None:
        self._by = by
        self._sort = sort
        self._over = over
        self._node = node
        self._rows = rows

    def press(self, key: str) -> None:
        """Look at something else."""
        self._sort = SORTS.get(key, self._sort)
        self._by = SIDES.get(key, self._by)
        self._over = OVERS.get(key, self._over)

    def ask(self, line: NodeLine, fit: int) -> dict[str, Any]:
        """Ask a node for ``fit`` rows, or for as many as the user wants."""
        words = ("BY", self._by, "SORT", self._sort, "OVER", self._over, "NODE", self._node)
        found: dict[str, Any] = line.call("R.TRAFFIC", *words, "TOP", min(fit, self._rows or fit))
        return found


def print_once(report: dict[str, Any], console: Console) -> None:
    """Print one table; where no terminal cuts lines, as wide as it needs to be."""
    console = console if console.is_terminal else Console(width=WIDE)
    console.print(*head(report), sep="\n")
    if not report["rows"]:
        raise stop("nothing was sent", NOTHING)
    console.print(table(report))


class Asking:
    """Asks one node, and when that one goes the first other that answers."""

    def __init__(self, line: NodeLine, addresses: Sequence[str]) -> None:
        self._line: NodeLine | None = line
        self._addresses = addresses

    def ask(self, look: Look, fit: int) -> dict[str, Any] | None:
        """Ask the nodes one after the other; None: none answers just now."""
        for address in ("", *self._addresses):
            try:
                if self._line is None:
                    self._line = dial(address, SILENCE_S) if address else None
                if self._line is not None:
                    return look.ask(self._line, fit)
            except (redis.ConnectionError, redis.TimeoutError):
                self.close()
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None


def watch(look: Look, asking: Asking, console: Console, every_s: float) -> None:
    """Draw until somebody leaves; then the terminal is as it was."""
    leaving: list[int] = []

    def leave(number: int, _frame: object) -> None:
        leaving.append(number)
        if len(leaving) == 1:
            raise KeyboardInterrupt  # It is lost where it meets a finalizer: hence the list.

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    clock = SystemClock()
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            terminal_keys() as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            goes_on = True
            while goes_on and not leaving:
                found = asking.ask(look, lines_for(console.height))
                live.update(AWAY if found is None else render(found), refresh=True)
                goes_on = wait(look, keys, clock.monotonic() + every_s, clock, leaving)
    finally:
        asking.close()
    if leaving == [signal.SIGTERM]:
        sys.exit(128 + signal.SIGTERM)


def wait(look: Look, keys: Keys, until: float, clock: SystemClock, leaving: Sequence[int]) -> bool:
    """
    Wait for the next look, which a key brings at once; whether there is to be one.

    ``leaving``: signals that came.
    """
    while (left_s := until - clock.monotonic()) > 0:
        key = keys.wait(min(left_s, LOOK_S))
        if key in LEAVE or leaving:
            return False
        if key:
            look.press(key.lower())
            return True
    return True
