"""``tidewarden up``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidewarden.cli.options import DATA_DIR, AsJson, server_part

NODES_MAX = 99


def up(
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=NODES_MAX, help="Nodes; odd numbers make sense.")
    ] = 3,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            min=1,
            max=65_000,
            help=(
                "Node i takes base + 10 i (Redis clients), + 1 (HTTP), + 2 (Raft), + 3 (its store);"
                " 7420 unless configured."
            ),
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Keys, data and logs; made when absent.")
    ] = Path(DATA_DIR),
    store_url: Annotated[
        str | None,
        typer.Option(
            "--store-url",
            metavar="embedded|URL",
            help=(
                "A Valkey or Redis of your own (redis:// rediss:// unix:// redis+sentinel://"
                " redis+cluster://)"
                " instead of one that is started here."
            ),
            show_default=False,
        ),
    ] = None,
    stores: Annotated[
        int | None,
        typer.Option(
            "--stores",
            metavar="1",
            min=1,
            max=1,
            help=(
                "1: all nodes share one store. Without it each of three or more nodes has its own,"
                " and they replicate; fewer share one."
            ),
            show_default=False,
        ),
    ] = None,
    sandbox: Annotated[
        int,
        typer.Option(
            "--sandbox",
            metavar="N",
            min=0,
            max=1_000_000,
            help="Start the sandbox authorization server, too, and import N of its accounts.",
        ),
    ] = 0,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings for all nodes: providers, limits, users, …",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """
    Run a whole cluster on this machine: nodes and their stores as processes, perhaps a sandbox.

    Draws what happens on a terminal; elsewhere prints a line per event, READY with the addresses
    among them. Ctrl-C stops all of it, and the same command goes on with the data. A store that
    dies is started again at once, a node after five seconds: what both of them had, the others
    have, too. A folder of an earlier version, with one store for all, gets a store for each node.

    Examples:

    tidewarden up --sandbox 2000

    tidewarden up --nodes 5 --config providers.toml --data-dir /var/lib/tidewarden

    tidewarden up --nodes 3 --stores 1

    kill -9 NODE STORE, which is the loss of a whole host, and watch the others take over
    """
    with server_part():
        from .running import run
    plan = (nodes, base_port, data_dir, store_url, sandbox, config)
    run(*plan, one_store=bool(stores), as_json=as_json)
