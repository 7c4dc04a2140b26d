"""``tidewarden token export``: writes all accounts into a sealed file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, AsJson, DataDir, Url, server_part

KeyFile = Annotated[
    str,
    typer.Option(
        "--key-file",
        metavar="KEY",
        help="File (32 bytes or more) that the sealed file's key is made from.",
    ),
]
PassphraseEnv = Annotated[
    str,
    typer.Option(
        "--passphrase-env", metavar="NAME", help="Or the environment variable with a passphrase."
    ),
]


def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; it must not be there yet.")
    ],
    key_file: KeyFile = "",
    passphrase_env: PassphraseEnv = "",
    provider: Annotated[
        str, typer.Option("--provider", metavar="NAME", help="Of this provider alone.")
    ] = "",
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Write all accounts with their tokens into FILE, sealed.

    Another cluster reads it by `token import --key-file`.

    Two clusters must not refresh one account: where refresh tokens rotate, the one revokes the
    other's. Stop this cluster's refreshers, or delete its accounts, before the other one runs.

    Example: tidewarden token export accounts.sealed --key-file transfer.key
    """
    with server_part():
        from .sealed import export_sealed
    export_sealed(
        file, key_file, passphrase_env, provider, lambda: connected(url, data_dir), as_json
    )
