"""
``tidewarden cluster backup|restore``: copies an embedded store to a file, and back to a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from tidewarden.cli.connection import connected
from tidewarden.cli.options import DATA_DIR, REFUSED, AsJson, DataDir, Url, server_part, stop
from tidewarden.cli.output import print_json
from tidewarden.config.key_file import sync_folder

MAGIC = "tidewarden backup"


def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it; must not exist.")
    ],
    url: Url = "",
    data_dir: DataDir = Path(DATA_DIR),
    as_json: AsJson = False,
) -> None:
    """
    Write everything that the cluster's embedded store holds, as of one moment, into one file.
    Nothing stops meanwhile.

    Tokens in it are sealed; the keys are not in it, only where they are: keep secrets/ (vault.key
    above all) elsewhere. What tasks carry is there as it is. With a Redis of your own, take its
    tools.

    Examples:

    tidewarden cluster backup /backups/tidewarden-monday

    tidewarden cluster backup monday.backup --json
    """
    if file.exists():
        raise stop(f"{file} is there already", REFUSED)
    part = file.with_name(file.name + ".part")
    with connected(url, data_dir) as line:
        header: dict[str, Any] = line.call("R.BACKUP")
        name = header.pop("backup")
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(json.dumps({"what": MAGIC, **header}).encode() + b"\n")
                _fetch(line, name, header, out)
                out.flush()
                os.fsync(out.fileno())
            part.replace(file)
            sync_folder(file.absolute().parent)
        except OSError as error:
            raise stop(f"{part} cannot be written: {error.strerror or error}", REFUSED) from None
        finally:
            part.unlink(missing_ok=True)
            line.call("R.BACKUP", "DROP", name)
    if as_json:
        print_json({"file": str(file), **header})
        return
    typer.echo(
        f"{file}: {header['bytes']:,} bytes of the store, epoch {header['epoch']}, view"
        f" {header['view']}"
    )
    for key in header["keys"].values():
        typer.echo(f"not in it, and needed with it: {key['where']} on {header['node']}")


def _fetch(line: Any, name: str, header: dict[str, Any], out: BinaryIO) -> None:
    digest, size = hashlib.sha256(), 0
    while piece := line.raw("R.BACKUP", "READ", name, size):
        size += len(piece)
        digest.update(piece)
        out.write(piece)
    if size != header["bytes"] or digest.hexdigest() != header["sha256"]:
        raise stop("the copy came damaged; nothing was kept", REFUSED)


def restore(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of `tidewarden cluster backup`.")
    ],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="The new data folder: empty, but for secrets/.")
    ],
    as_json: AsJson = False,
) -> None:
    """
    Make a data folder from a backup, while nothing runs on it.

    Then put secrets/ there and start `tidewarden up` (or the node) on it.

    Lease numbers and epochs go on far above the backup's, so that nothing that was handed out after
    it can be taken for something new.

    Examples:

    tidewarden cluster restore monday.backup --data-dir ./restored

    tidewarden cluster restore monday.backup --data-dir ./restored --json
    """
    with server_part():
        from .restored_folder import restore_from
    restore_from(file, data_dir, as_json)
