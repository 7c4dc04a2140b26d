"""
``tidewarden token refresh``: asks for accounts again.

It asks one after the other, so that their provider is not flooded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidewarden.cli.connection import NodeLine, connected
from tidewarden.cli.options import DATA_DIR, NOTHING, REFUSED, USAGE, AsJson, DataDir, Url, stop
from tidewarden.cli.output import cell, print_json, print_table
from tidewarden.errors import NotFound

from .view import Provider, State, pages

if TYPE_CHECKING:
    from tidewarden.clock import Clock

Accounts = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROVIDER/ACCOUNT…", help="The accounts, as sandbox/user-000001."),
]
BATCH = 500
TURN_S = 0.1
"""Between two turns; a turn asks for as many accounts as the pace allows in that time."""


@dataclass(slots=True)
class RefreshWish:
    """Collects the results of the refresh requests so far."""

    queued: int = 0
    absent: int = 0
    """Accounts that are there no more."""
    refused: dict[str, str] = field(default_factory=dict)
    """The others that the node refused, with its words."""

    @property
    def count(self) -> int:
        """Return how many accounts were asked for."""
        return self.queued + self.absent + len(self.refused)

    def counts(self) -> dict[str, int]:
        """Return the counts for a program."""
        return {"queued": self.queued, "absent": self.absent, "refused": len(self.refused)}


async def ask(
    node: NodeLine,
    names: Sequence[str],
    per_second: int,
    clock: Clock,
    asked: RefreshWish,
    note: Callable[[], None],
) -> None:
    """
    Request refreshes of accounts, ``per_second`` of them a second; ``asked`` has the results.

    ``note`` is called after each turn.
    """
    from tidewarden.clock import sleep

    size, began = max(1, min(BATCH, int(per_second * TURN_S))), clock.monotonic()
    for at in range(0, len(names), size):
        await sleep(clock, max(0.0, began + at / per_second - clock.monotonic()))
        some = names[at : at + size]
        for name, answer in zip(
            some, node.batch([("T.REFRESH", name) for name in some]), strict=True
        ):
            if not isinstance(answer, Exception):
                asked.queued += 1
            elif str(answer).startswith(NotFound.code) and "no account" in str(answer):
                asked.absent += 1
            else:
                asked.refused[name] = str(answer)
        note()


def refresh(
    accounts: Accounts = None,
    provider: Provider = "",
    state: State = "",
    per_second: Annotated[
        int,
        typer.Option(
            "--per-second", min=1, max=10_000, help="Ask for at most so many accounts in a second."
        ),
    ] = 20,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say which accounts would be asked for, by the cause."),
    ] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Refresh accounts now rather than when they are due, stopped and dead ones too.

    Does not wait for what comes of it.

    Named accounts, or with --state all that are in it: after a provider's mistake --state stopped
    (or dead, lost_rotation, failing) with --provider NAME. They are asked for one after the other,
    --per-second of them; Ctrl-C leaves the rest as they are.

    Exit code 1 when the node refused some, 5 when an account that was named is not there.

    Examples:

    tidewarden token refresh sandbox/user-000001

    tidewarden token refresh --state stopped --provider sandbox --dry-run
    """
    import asyncio

    from tidewarden.clock import SystemClock

    from .progress import ProgressLine

    if bool(accounts) == bool(state):
        raise stop("name the accounts, or give --state (and --provider), one of the two", USAGE)
    if accounts and provider:
        raise stop("--provider goes with --state; the names of accounts have their provider", USAGE)
    with connected(url, data_dir) as node:
        found = _found(node, provider, state) if state else {name: {} for name in accounts or ()}
        if dry_run:
            _foretell(found, state, per_second, as_json)
            return
        asked = RefreshWish()
        try:
            with ProgressLine("asking") as pace:
                asyncio.run(
                    ask(
                        node,
                        list(found),
                        per_second,
                        SystemClock(),
                        asked,
                        lambda: pace.note(
                            f"{asked.count:,} of {len(found):,} asked for", asked.count
                        ),
                    )
                )
        except BaseException:
            if asked.count:
                typer.echo(
                    f"tidewarden: asked for before this: {asked.count:,} of {len(found):,}",
                    err=True,
                )
            raise
    _told(asked, found, state, as_json)


def _found(node: NodeLine, provider: str, state: str) -> dict[str, dict[str, Any]]:
    """
    Collect all accounts in a state, by name, before any is asked for, which changes the state.
    """
    found, after = pages(node, provider, state, BATCH, "")
    while after:
        more, after = pages(node, provider, state, BATCH, after)
        found += more
    return {str(one["account"]): one for one in sorted(found, key=lambda one: str(one["account"]))}


def _foretell(found: dict[str, dict[str, Any]], state: str, per_second: int, as_json: bool) -> None:
    """Print what would be done."""
    if as_json:
        print_json(
            {
                "dry_run": True,
                "would_ask": len(found),
                "seconds": len(found) // per_second,
                "accounts": list(found),
            }
        )
        return
    if state and found:
        causes = Counter(
            (one["provider"], str(one.get("message") or one.get("error") or "-"))
            for one in found.values()
        )
        rows = [[name, state, count, why] for (name, why), count in causes.most_common()]
        print_table(("provider", "state", "accounts", "why"), rows)
    typer.echo(
        f"{len(found):,} accounts would be asked for, {per_second:,} a second:"
        f" {len(found) / per_second:,.0f} s. Nothing was done."
    )


def _told(asked: RefreshWish, found: dict[str, dict[str, Any]], state: str, as_json: bool) -> None:
    """
    Print what came of it.

    Ends the program with 1 if any was refused, with 5 if one that was named is not there.
    """
    for name, reason in asked.refused.items():
        typer.echo(f"tidewarden: refused: {cell(name)}: {cell(reason)}", err=True)
    if as_json:
        print_json(asked.counts())
    elif state and not found:
        typer.echo("No account is so: nobody was asked for.")
    elif [asked.queued, len(found)] == [1, 1]:
        (name,) = map(cell, found)
        typer.echo(f"{name} is asked for. What comes of it: tidewarden token why {name}")
    else:
        rest = ((asked.absent, "absent"), (len(asked.refused), "refused"))
        typer.echo(
            ", ".join(
                [
                    f"{asked.queued:,} queued",
                    *(f"{count:,} {word}" for count, word in rest if count),
                ]
            )
        )
    if asked.refused:
        raise typer.Exit(REFUSED)
    if asked.absent and not state:
        typer.echo(
            f"tidewarden: there is no such account: {asked.absent:,} of those named", err=True
        )
        raise typer.Exit(NOTHING)
