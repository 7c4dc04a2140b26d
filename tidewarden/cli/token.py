"""``tidewarden token …``: accounts in, tokens out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import redis
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tidewarden.presets import PRESETS

from .account_file import NotAccounts, Row, rows
from .connection import NodeLine, connected
from .options import DATA_DIR, NOTHING, REFUSED, USAGE, AsJson, DataDir, Url, stop
from .output import moment, print_json, print_map, print_table
from .sealed import KeyFile, PassphraseEnv, export, import_sealed

app = typer.Typer(help="Import accounts, and get, list and mend their tokens.", no_args_is_help=True)
Account = Annotated[str, typer.Argument(metavar="PROVIDER/ACCOUNT", help="The account, as sandbox/user-000001.")]
BATCH_ROWS = 500
BATCH_BYTES = 262_144


@dataclass(slots=True)
class Tally:
    """How far an import is, in lines that are accounts."""

    stored: int = 0
    bad: int = 0


@app.command("import")
def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV or TSV with a header, or JSONL; - is standard input.")
    ],
    provider: Annotated[
        str,
        typer.Option("--provider", metavar="NAME", help="The provider, as in [providers.NAME]; not for a sealed file."),
    ] = "",
    key_file: KeyFile = "",
    passphrase_env: PassphraseEnv = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Import accounts: each line a grant that you obtained. Repeating an import changes nothing.

    Columns: account, refresh_token, and optionally access_token, expires_at_ms (unix, milliseconds), scope, client.

    Every bad line is reported with its number and reason, the good ones are kept; then the exit code is 1. --json prints
    a line of JSON for each bad line and a last one with the counts.

    Examples:

    curl -s 'http://127.0.0.1:7490/seed?n=1000' | tidewarden token import - --provider sandbox

    tidewarden token import accounts.csv --provider google

    tidewarden token import accounts.sealed --key-file transfer.key
    """
    if key_file or passphrase_env:
        import_sealed(file, key_file, passphrase_env, lambda: connected(url, data_dir), as_json)
        return
    if not provider:
        raise stop("--provider is missing: whose accounts are these? (A sealed file needs --key-file instead.)", USAGE)
    tally = Tally()
    with ExitStack() as stack:
        try:
            source: IO[bytes] = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
        except OSError as error:
            raise stop(f"{file}: cannot be read: {error.strerror or error}", USAGE) from None
        total_bytes = Path(file).stat().st_size if file != "-" else 0
        node = stack.enter_context(connected(url, data_dir))
        progress = stack.enter_context(_progress())
        bar = progress.add_task("importing", total=total_bytes or None)
        try:
            for batch, size_bytes in _batches(rows(source, provider)):
                _put(node, provider, batch, tally, progress.console, as_json)
                progress.update(bar, advance=size_bytes, description=f"{tally.stored:,} stored, {tally.bad:,} bad")
        except NotAccounts as error:
            raise stop(f"{file}: {error}", USAGE) from None
        except redis.AuthenticationError:  # to redis-py a kind of ConnectionError
            raise
        except (redis.ConnectionError, redis.TimeoutError):
            typer.echo(f"tidewarden: {tally.stored:,} were stored before; run it again, that repeats nothing", err=True)
            raise
    if as_json:
        print_json({"stored": tally.stored, "bad": tally.bad})
    else:
        typer.echo(f"{tally.stored:,} accounts stored, {tally.bad:,} bad lines")
    if tally.bad:
        raise typer.Exit(REFUSED)


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
    List the providers that are known, for ``preset`` in [providers.NAME], with the source of what is said of each.

    Example: tidewarden token presets --json
    """
    found = [one for _, one in sorted(PRESETS.items())]
    if as_json:
        print_json([asdict(one) | {"settings": dict(one.settings)} for one in found])
        return
    rows = [[one.name, one.settings["rotation"], ", ".join(one.unconfirmed), one.note] for one in found]
    print_table(("preset", "rotation", "not confirmed", "note"), rows)


def _batches(found: Iterator[Row]) -> Iterator[tuple[list[Row], int]]:
    """Rows in batches, with the bytes of the file that each stands for; bounded in number and in size."""
    batch: list[Row] = []
    size_bytes = 0
    for row in found:
        batch.append(row)
        size_bytes += row.size_bytes
        if len(batch) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield batch, size_bytes
            batch, size_bytes = [], 0
    if batch:
        yield batch, size_bytes


def _put(node: NodeLine, provider: str, batch: list[Row], tally: Tally, console: Console, as_json: bool) -> None:
    good = [row for row in batch if row.fields]
    answers = node.batch([("T.PUT", f"{provider}/{row.account}", row.fields) for row in good]) if good else []
    faults = {row.line: str(answer) for row, answer in zip(good, answers, strict=True) if isinstance(answer, Exception)}
    for answer in answers:
        # What concerns the caller or the store, not the line, will refuse all the others, too.
        if isinstance(answer, redis.AuthenticationError) or str(answer).startswith(
            ("NOAUTH", "DENIED", "STOREDOWN", "NOTFOUND")
        ):
            raise answer
    faults |= {row.line: row.fault for row in batch if row.fault}
    tally.stored += len(good) - sum(row.line in faults for row in good)
    tally.bad += len(faults)
    for line, reason in sorted(faults.items()):
        if as_json:
            print_json({"line": line, "reason": reason})
        else:
            console.print(f"line {line}: {reason}", markup=False, highlight=False, soft_wrap=True)


def _progress() -> Progress:
    """On standard error, and only when that is a terminal; what is said beside it goes there, too."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _when(name: str, value: Any) -> Any:
    return moment(value) if name.endswith("_ms") else value
