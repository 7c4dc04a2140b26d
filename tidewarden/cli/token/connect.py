"""``tidewarden token connect``: a link by which a person consents in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, USAGE, AsJson, DataDir, Url, stop
from tidewarden.cli.output import moment, print_json, print_map

from .view import Account


def connect(
    account: Account,
    return_to: Annotated[
        str,
        typer.Option(
            "--return", metavar="URL", help="Where the browser goes in the end; else to a page."
        ),
    ] = "",
    scope: Annotated[
        str, typer.Option("--scope", help="What is asked for; else the provider's consent_scope.")
    ] = "",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="NAME=VALUE", help="Of the account; may be repeated."),
    ] = None,
    device: Annotated[
        bool,
        typer.Option("--device", help="Print a code for another device instead of a link."),
    ] = False,
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Print a link by which a person consents in a browser; the account is then put by itself.

    Give it to that person alone: whoever opens it may connect the account.

    With --device the person types a code in at the provider, on whichever device.

    Example: tidewarden token connect shop/ada@example.com --scope "read write"
    """
    words = ["T.DEVICE" if device else "T.CONNECT", account]
    if return_to and device:
        raise stop("--return is for a link, not for a device", USAGE)
    if return_to:
        words += ["RETURN", return_to]
    if scope:
        words += ["SCOPE", scope]
    if parameter:
        pairs = [one.partition("=") for one in parameter]
        if bad := next((name for name, equals, _ in pairs if not (name and equals)), None):
            raise stop(f"--parameter {bad!r} is not of the form NAME=VALUE", USAGE)
        words += ["PARAMETERS", json.dumps({name: value for name, _, value in pairs})]
    with connected(url, data_dir) as node:
        link = node.call(*words)
    if device:
        if as_json:
            print_json({"account": account, **link})
        else:
            print_map({**link, "until_ms": moment(link["until_ms"])})
    elif as_json:
        print_json({"account": account, "url": link})
    else:
        typer.echo(link)
