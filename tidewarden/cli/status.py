"""``tidewarden status``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from .connection import (
    WHO,
    Broken,
    Refused,
    addresses,
    dial,
    maybe_tls,
    no_address,
    said,
    shown,
)
from .options import DATA_DIR, REFUSED, UNREACHABLE, AsJson, DataDir, Url, stop
from .output import print_json, print_table

COLUMNS = (
    *("node", "role", "leader", "epoch", "view", "primary", "in_sync", "quorum", "pid"),
    "store_pid",
)


def status(url: Url = "", data_dir: DataDir = Path(DATA_DIR), as_json: AsJson = False) -> None:
    """
    Show who leads: each node with its role, the leader it sees and the epoch.

    Of stores that replicate also whose is primary, and which are in sync.

    Asks every node of a local cluster, or the one that --url names. Succeeds when at least one
    answers.

    Examples:

    tidewarden status

    tidewarden status --url redis://admin:SECRET@10.0.0.5:7420 --json
    """
    nodes: list[dict[str, Any]] = []
    silent: list[str] = []
    refused: list[str] = []
    for address in addresses(url, data_dir):
        try:
            line = dial(address)
            try:
                nodes.append({"address": shown(address), **line.call("R.STATUS")})
            finally:
                line.close()
        except Refused as error:
            refused.append(
                f"{shown(address)} refused: {said(error)}{'' if '@' in address else WHO}"
            )
        except ValueError as error:
            raise no_address(address, error) from None
        except Broken as error:
            silent.append(f"{shown(address)} does not answer: {error}{maybe_tls(address, error)}")
    if as_json:
        print_json({"nodes": nodes, "unreachable": silent, "refused": refused})
    else:
        if nodes:
            columns = [
                *(name for name in COLUMNS if any(name in node for node in nodes)),
                "address",
            ]
            print_table(columns, [[node.get(name) for name in columns] for node in nodes])
        if losses := sorted({node["loss"] for node in nodes if node.get("loss")}):
            typer.echo(
                f"acknowledged writes may be missing ({', '.join(losses)}): `tidewarden cluster"
                " status` says more",
                err=True,
            )
        for text in (*silent, *refused):
            typer.echo(text, err=True)
    if not nodes:
        raise stop("no node gave its status", REFUSED if refused else UNREACHABLE)
