"""Makes a data folder from a backup: ``tidewarden cluster restore``."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import typer

from tidewarden.cli.options import REFUSED, stop
from tidewarden.cli.output import print_json
from tidewarden.clock import SystemClock
from tidewarden.config.cluster_secret import key_check
from tidewarden.config.key_file import sync_folder
from tidewarden.config.load import NAME, Store
from tidewarden.errors import ConfigError, StoreDown
from tidewarden.store.embedded.server import EmbeddedStore
from tidewarden.store.redis_py import Redis, RedisError

from .command import MAGIC

FORMAT = 1
HEADER_BYTES_MAX = 1 << 20
CHUNK = 1 << 20
VIEWS_AHEAD = 1000
"""
The store's restarts since the backup, at most: lease numbers begin with the view. There are 131,071
views in all.
"""
EPOCHS_AHEAD = 1 << 20
BASE = "appendonly.aof.1.base.rdb"
PART = "store.part"
"""What will be ``store`` when all of it is well; one that a former try left is no hindrance."""
KEYS = {"cluster": "cluster.key", "vault": "vault.key"}


def restore_from(file: Path, data_dir: Path, as_json: bool) -> None:
    """
    Make the data folder, and raise its numbers.

    Ends the program where the file or the folder cannot be used.
    """
    if data_dir.exists() and (
        not data_dir.is_dir() or {path.name for path in data_dir.iterdir()} - {"secrets", PART}
    ):
        raise stop(
            f"{data_dir} is not empty: name a new folder, or one that has nothing but secrets/",
            REFUSED,
        )
    part = data_dir / PART
    try:
        with file.open("rb") as source:
            header = _header(source)
            _check_keys(header, data_dir)
            if part.exists():
                shutil.rmtree(part)
            _unpack(source, header, part)
        keys, view, epoch = asyncio.run(_raise(part, header))
        # nothing is started on a copy whose numbers were not raised yet
        part.rename(data_dir / "store")
        sync_folder(data_dir)
    except OSError as error:
        where = error.filename or (
            data_dir if error.errno in (errno.ENOSPC, errno.EDQUOT) else file
        )
        raise stop(f"{where}: {error.strerror or error}", REFUSED) from None
    except (StoreDown, ConfigError, RedisError) as error:
        raise stop(f"the store cannot be started on it: {error}", REFUSED) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    if as_json:
        print_json(
            {
                "data_dir": str(data_dir),
                "keys": keys,
                "view": view,
                "epoch": epoch,
                "backup": header,
            }
        )
        return
    typer.echo(f"{data_dir}: {keys:,} keys, view {view}, epoch {epoch}")
    missing = [name for name in KEYS.values() if not (data_dir / "secrets" / name).exists()]
    if missing:
        typer.echo(
            "before you start it, put back:"
            f" {', '.join(str(data_dir / 'secrets' / name) for name in missing)}"
        )
    if header["cluster"] != "tidewarden":
        typer.echo(f'start it with cluster.name = "{header["cluster"]}"')


def _header(source: BinaryIO) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(source.readline(HEADER_BYTES_MAX))
        if header["what"] != MAGIC:
            raise ValueError
        form = header["format"]
    except (ValueError, KeyError, TypeError):
        raise stop(f"{source.name} is no backup of tidewarden", REFUSED) from None
    if form != FORMAT:
        raise stop(f"{source.name} has format {form}; this version reads {FORMAT}", REFUSED)
    try:
        found = [type(header[name]) for name in ("cluster", "sha256", "bytes", "view")]
        found += [type(header["keys"][name][word]) for name in KEYS for word in ("where", "check")]
    except (KeyError, TypeError):
        found = []
    if found != [str, str, int, int, *[str] * 4] or not re.fullmatch(NAME, header["cluster"]):
        raise stop(f"{source.name}: its first line is damaged", REFUSED)
    return header


def _check_keys(header: dict[str, Any], data_dir: Path) -> None:
    """
    Check that keys that are there already are the backup's.

    With another vault.key no token could be read.
    """
    for name, file in KEYS.items():
        path, wanted = data_dir / "secrets" / file, header["keys"][name]
        there = set(key_check(path.read_text("utf-8")).split()) if path.exists() else set()
        if there and wanted["check"] and not there & set(wanted["check"].split()):
            if name == "vault":
                raise stop(
                    f"{path} is another key than the backup's, which was {wanted['where']}", REFUSED
                )
            typer.echo(
                f"{path} is another secret than before: every node needs this one now", err=True
            )


def _unpack(source: BinaryIO, header: dict[str, Any], folder: Path) -> None:
    """Make the store's folder, with the copy as its whole log."""
    digest, size = hashlib.sha256(), 0
    files = folder / "appendonlydir"
    files.mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    with open(os.open(files / BASE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while piece := source.read(CHUNK):
            size += len(piece)
            digest.update(piece)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    (files / "appendonly.aof.manifest").write_text(f"file {BASE} seq 1 type b\n")
    if size != header["bytes"] or digest.hexdigest() != header["sha256"]:
        raise stop(f"{source.name} is damaged or cut short", REFUSED)


async def _raise(folder: Path, header: dict[str, Any]) -> tuple[int, int, int]:
    """Start the store once, raise its view and epoch, and stop it. Returns: keys, view, epoch."""
    cluster = header["cluster"]
    store = EmbeddedStore(
        folder, Store(fsync="always"), cluster, secrets.token_urlsafe(32), SystemClock()
    )
    client = Redis.from_url(await store.start())
    try:
        if store.view <= header["view"]:
            raise ConfigError(
                [
                    f"it has view {store.view - 1} of {cluster!r}, not {header['view']}: another"
                    " cluster's"
                ]
            )
        tag = f"{{{cluster}}}"
        view = int(await client.incrby(f"{tag}:view", VIEWS_AHEAD))
        epoch = int(await client.hincrby(f"{tag}:fence", "epoch", EPOCHS_AHEAD))
        await client.hset(f"{tag}:fence", "holder", "")
        # of a replicated cluster: whose primary it was; the view above counts from now on, and what
        # follows is another history than that of stores that went on after the backup
        await client.delete(f"{tag}:primary")
        return int(await client.dbsize()), view, epoch
    finally:
        await client.aclose()
        await store.stop()
