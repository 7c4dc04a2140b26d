"""``tidewarden provider …``: providers that are put, shown and removed while nodes run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, NOTHING, USAGE, AsJson, DataDir, Url, stop
from tidewarden.cli.output import moment, print_json, print_map, print_table

app = typer.Typer(
    help="Put, show and remove providers while nodes run. Needs the right token:admin; to put one"
    " token:export, too.",
    no_args_is_help=True,
)
Provider = Annotated[str, typer.Argument(metavar="PROVIDER", help="The provider's name, as shop.")]


@app.command("put")
def put(
    provider: Provider,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Its settings as a JSON object, named as in the configuration file; - reads them"
            " from standard input.",
        ),
    ],
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Put a provider, or replace one that was put. All nodes have it within about a second.

    Its secrets are sealed as tokens are, and never shown again.

    Example: tidewarden provider put shop shop.json
    """
    try:
        document = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise stop(f"{file}: {error.strerror or error}", USAGE) from None
    with connected(url, data_dir) as node:
        found = node.call("P.PUT", provider, document)
    _show(found, as_json=as_json)


@app.command("show")
def show(
    provider: Provider, url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False
) -> None:
    """
    Show a provider that was put, without its secrets.

    Example: tidewarden provider show shop
    """
    with connected(url, data_dir) as node:
        found = node.call("P.GET", provider)
    _show(found, as_json=as_json)


@app.command("list")
def listing(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    List the providers that were put. Those of the configuration files are not among them.

    Example: tidewarden provider list
    """
    with connected(url, data_dir) as node:
        found = node.call("P.LIST")
    if as_json:
        print_json(found)
        return
    print_table(
        ("provider", "client", "put (UTC)", "not in force here because"),
        [
            (
                one["provider"],
                one["settings"].get("client_id", ""),
                moment(one["put_ms"]),
                one["fault"],
            )
            for one in found
        ],
    )


@app.command("remove")
def remove(provider: Provider, url: Url = "", data_dir: DataDir = Path(DATA_DIR)) -> None:
    """
    Remove a provider that was put. Its accounts are kept, and not refreshed.

    Example: tidewarden provider remove shop
    """
    with connected(url, data_dir) as node:
        found = node.call("P.DELETE", provider)
    if not found:
        raise stop(f"there is no provider {provider!r} that was put", NOTHING)
    typer.echo(f"removed {provider}")


def _show(found: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    said = {"provider": found["provider"], "put": moment(found["put_ms"])}
    if found["fault"]:
        said["not in force here because"] = found["fault"]
    settings = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in sorted(found["settings"].items())
    }
    print_map({**said, **settings})
