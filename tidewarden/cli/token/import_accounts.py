"""
``tidewarden token import``: puts a file of accounts into the cluster, line by line, and reports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from tidewarden.cli.connection import NodeError, NodeLine, NotAuthenticated, connected
from tidewarden.cli.options import DATA_DIR, REFUSED, USAGE, AsJson, DataDir, Url, server_part, stop
from tidewarden.cli.output import cell, print_json

from .account_file import COLUMNS, AccountLine, NotAccounts, lines_of, rows
from .export import KeyFile, PassphraseEnv

if TYPE_CHECKING:
    from rich.console import Console

    from .progress import ProgressLine

BATCH_ROWS = 500
BATCH_BYTES = 262_144
SHOWN_MAX = 100
"""Bad lines that a person is shown; a file of another kind may have millions."""
FOR_ALL = (
    "NOAUTH",
    "DENIED",
    "STOREDOWN",
    "NOQUORUM",
    "DRAINING",
    "FULL",
    "INTERNAL",
    "unknown command",
)
"""What concerns the caller or the cluster, not the line: it would refuse all the others, too."""


@dataclass(slots=True)
class Tally:
    """Counts the progress of an import, in lines that are accounts."""

    new: int = 0
    renewed: int = 0
    unchanged: int = 0
    dead: int = 0
    """Of the unchanged."""
    stopped: int = 0
    """Of the unchanged, too."""
    bad: int = 0

    @property
    def stored(self) -> int:
        """Return how many lines the cluster has now."""
        return self.new + self.renewed + self.unchanged

    def note(self, change: str, state: str) -> None:
        """Count a line that was put, as ``T.PUT … VERBOSE`` answers."""
        if change == "same":
            self.unchanged += 1
            self.dead += state in ("dead", "lost_rotation")
            self.stopped += state == "stopped"
        elif change == "renewed":
            self.renewed += 1
        else:
            self.new += 1

    def text(self) -> str:
        """Write the counts for a person, in one line."""
        ended = [
            f"{count:,} {word}"
            for count, word in ((self.dead, "dead"), (self.stopped, "stopped"))
            if count
        ]
        of_which = f" (of which {', '.join(ended)})" if ended else ""
        counts = (
            f"{self.new:,} new, {self.renewed:,} with a new grant, {self.unchanged:,}"
            f" unchanged{of_which}"
        )
        return f"{accounts(self.stored)}: {counts}; {self.bad:,} bad line{'s' * (self.bad != 1)}"


def accounts(count: int) -> str:
    """Return a number of accounts in words."""
    return f"{count:,} account{'s' * (count != 1)}"


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="CSV or TSV with a header, or JSONL; - is standard input."
        ),
    ],
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            metavar="NAME",
            help=(
                "Whose accounts all of them are; without it each line says so. Not for a sealed"
                " file."
            ),
        ),
    ] = "",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help=(
                "Leave accounts that are there and not dead as they are, also with another grant."
                " Not for a sealed file."
            ),
        ),
    ] = False,
    key_file: KeyFile = "",
    passphrase_env: PassphraseEnv = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Import accounts: each line a grant that you obtained. Repeating an import changes nothing.

    Columns: account, refresh_token, and optionally provider, access_token, token_type, expires_at
    (2026-11-21T18:00:00Z, or unix time), scope, client, consent_expires_at (when the refresh token
    ends by itself), parameters.NAME and extras.NAME (in JSONL: objects), as its provider's settings
    name them; subject_token, or none of both, in place of refresh_token where the provider's grant
    is another. Without --provider and without a column provider, an account is written
    provider/account.

    Every bad line is reported with its number and reason, the good ones are kept; then the exit
    code is 1. Correct these lines and import the file again: a refresh token that is there already,
    or was there first, changes nothing. --json prints a line of JSON for each bad line and a last
    one with the counts.

    Examples:

    curl -s 'http://127.0.0.1:7490/seed?n=1000' | tidewarden token import - --provider sandbox

    tidewarden token import accounts.csv --provider google

    tidewarden token import accounts.sealed --key-file transfer.key
    """
    if key_file or passphrase_env:
        if keep or provider:
            raise stop("--keep and --provider are not for a sealed file", USAGE)
        _import_sealed(file, key_file, passphrase_env, lambda: connected(url, data_dir), as_json)
        return
    tally = Tally()
    with ExitStack() as stack:
        try:
            source: IO[bytes] = (
                sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
            )
        except OSError as error:
            raise stop(f"{file}: cannot be read: {error.strerror or error}", USAGE) from None
        total_bytes = Path(file).stat().st_size if file != "-" else 0
        node = stack.enter_context(connected(url, data_dir))
        known, without = _known(node, provider)
        pace = stack.enter_context(_progress(total_bytes))
        options = ("KEEP", "VERBOSE") if keep else ("VERBOSE",)
        try:
            for batch, size_bytes in _batches(rows(lines_of(source), provider, known, without)):
                _put(node, options, batch, tally, pace.console, as_json)
                pace.note(
                    f"{tally.stored:,} stored, {tally.bad:,} bad",
                    tally.stored + tally.bad,
                    size_bytes,
                )
        except NotAccounts as error:
            raise stop(f"{file}: {error}", USAGE) from None
        except NodeError:
            if tally.stored:
                before = (
                    f"stored before this: {accounts(tally.stored)}; run it again, that repeats"
                    " nothing"
                )
                typer.echo(f"tidewarden: {before}", err=True)
            raise
    if as_json:
        counts = {"new": tally.new, "renewed": tally.renewed, "unchanged": tally.unchanged}
        ended = {"dead": tally.dead, "stopped": tally.stopped}
        print_json({"stored": tally.stored, **counts, **ended, "bad": tally.bad})
    else:
        typer.echo(tally.text())
        _hint(tally)
    if tally.bad:
        raise typer.Exit(REFUSED)


def _import_sealed(*words: Any) -> None:
    """Import a sealed file, see :func:`import_sealed`."""
    with server_part():
        from .sealed import import_sealed
    import_sealed(*words)


def _progress(total_bytes: int) -> ProgressLine:
    from .progress import ProgressLine

    return ProgressLine("importing", total_bytes)


def _known(node: NodeLine, provider: str) -> tuple[list[str], set[str]]:
    """
    Return the configured providers, and those of them whose accounts have no refresh tokens.

    Ends the program if ``provider`` is none of them.
    """
    stats = node.call("T.STATS")
    known = sorted(stats)
    without = {
        name for name, one in stats.items() if one.get("grant", "refresh_token") != "refresh_token"
    }
    if provider and provider not in known:
        names = ", ".join(known) or "none"
        raise stop(
            f"there is no provider {provider!r}; configured: {names} ([providers.NAME] of"
            " config.toml, on each node)",
            USAGE,
        )
    return known, without


def _batches(found: Iterator[AccountLine]) -> Iterator[tuple[list[AccountLine], int]]:
    """
    Yield rows in batches, bounded in number and size, with the bytes of the file each stands for.
    """
    batch: list[AccountLine] = []
    size_bytes = 0
    for row in found:
        batch.append(row)
        size_bytes += row.size_bytes
        if len(batch) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield batch, size_bytes
            batch, size_bytes = [], 0
    if batch:
        yield batch, size_bytes


def _put(
    node: NodeLine,
    options: tuple[str, ...],
    batch: list[AccountLine],
    tally: Tally,
    console: Console,
    as_json: bool,
) -> None:
    good = [row for row in batch if row.fields]
    answers = (
        node.batch([("T.PUT", row.account, row.fields, *options) for row in good]) if good else []
    )
    faults = {row.line: (row.account, row.field, row.fault) for row in batch if row.fault}
    stopped: Exception | None = None
    for row, answer in zip(good, answers, strict=True):
        if not isinstance(answer, Exception):
            tally.note(answer[1], answer[2])
        elif isinstance(answer, NotAuthenticated) or str(answer).startswith(FOR_ALL):
            stopped = answer
        else:
            word, _, said = str(answer).partition(" ")
            reason = said if word.isupper() else str(answer)
            field = reason.partition(" ")[0]
            faults[row.line] = (row.account, field if field in COLUMNS else "", reason)
    for line, (account, field, reason) in sorted(faults.items()):
        tally.bad += 1
        if as_json:
            print_json({"line": line, "account": account, "field": field, "reason": reason})
        elif tally.bad == SHOWN_MAX + 1:
            console.print(
                "further bad lines are only counted; --json names them all", highlight=False
            )
        elif tally.bad <= SHOWN_MAX:
            who = f" ({cell(account)})" if account else ""
            console.print(
                f"line {line}{who}: {reason}", markup=False, highlight=False, soft_wrap=True
            )
    if stopped is not None:
        raise stopped


def _hint(tally: Tally) -> None:
    if tally.bad:
        typer.echo(
            "Correct what is bad and import the file again: what is there already stays as it is.",
            err=True,
        )
    if tally.dead:
        typer.echo(
            "The dead stay dead with the refresh token that was refused: tidewarden token list"
            " --state dead",
            err=True,
        )
    if tally.stopped:
        typer.echo(
            "The stopped are asked for again by: tidewarden token refresh --state stopped", err=True
        )
