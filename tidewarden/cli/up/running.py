"""Runs the cluster of ``tidewarden up``, from its options to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from tidewarden.cli.options import CONFIG, REFUSED, stop
from tidewarden.cli.watch import Watch
from tidewarden.clock import SystemClock
from tidewarden.config.load import Config, is_loopback, load
from tidewarden.errors import ConfigError, StoreDown

from .data_folder import ADMIN, FolderPlan
from .live_view import ShownEvent
from .local_cluster import LocalCluster, NotReady


def run(
    nodes: int,
    base_port: int | None,
    data_dir: Path,
    store_url: str | None,
    sandbox: int,
    file: Path | None,
    *,
    one_store: bool,
    as_json: bool,
) -> None:
    """
    Run it until SIGINT, SIGTERM or a closed terminal.

    Ends the program when it cannot start.
    """
    try:
        plan = _plan(nodes, base_port, data_dir, store_url, sandbox, file, one_store)
        asyncio.run(_up(plan, as_json=as_json))
    except ConfigError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "problems": error.problems}))
            raise typer.Exit(CONFIG) from None
        raise stop(
            "cannot start:\n" + "\n".join(f"  {line}" for line in error.problems), CONFIG
        ) from None
    except (NotReady, StoreDown) as error:
        raise stop(f"cannot start: {error}", REFUSED) from None


def _plan(
    nodes: int,
    base_port: int | None,
    data_dir: Path,
    store_url: str | None,
    sandbox: int,
    file: Path | None,
    one_store: bool,
) -> FolderPlan:
    """Return the plan of a cluster. Raises: ConfigError: every reason against it."""
    flags = {"node.data_dir": str(data_dir)}
    if base_port is not None:
        flags["node.base_port"] = str(base_port)
    if store_url is not None:
        flags["store.url"] = store_url
    config: Config = load(str(file) if file else None, os.environ, flags)
    problems = []
    if config.cluster.members:
        problems.append(
            f"{config.source}: cluster.members: not allowed here: `up` names its nodes itself"
        )
    if not is_loopback(config.node.host):
        problems.append(
            f"{config.source}: node.host: found {config.node.host!r}; `up` runs on loopback alone:"
            " use `tidewarden node` on each host of a real cluster"
        )
    if sandbox and "sandbox" in config.providers:
        problems.append(
            f"{config.source}: [providers.sandbox]: not allowed with --sandbox, which makes its own"
        )
    if one_store and config.store.url != "embedded":
        problems.append("--stores: allowed with stores that `up` runs, not with --store-url")
    if problems:
        raise ConfigError(problems)
    return FolderPlan(data_dir, config, file, nodes, sandbox, one_store=one_store)


async def _up(plan: FolderPlan, *, as_json: bool) -> None:
    """Run until SIGINT, SIGTERM or a closed terminal."""
    console = Console()
    draw = console.is_terminal and not console.is_dumb_terminal and not as_json
    clock = SystemClock()
    say = _print_json if as_json else _print_line
    cluster = LocalCluster(plan, clock, lambda event: None if watch.drawing else say(event))
    watch = Watch(cluster, clock, console if draw else None)

    async def serve() -> None:
        if not draw:
            _print_ready(plan, as_json=as_json)
        cluster.tell(
            "up",
            f"ready; the console is http://{plan.address(plan.names[0], 1)}/, its user {ADMIN}, the"
            f" secret lies in {plan.data_dir}/secrets/admin.secret",
        )
        await watch.run()

    # The store's log is told as events; written to the terminal as well, it would stand in the
    # midst of the view.
    logging.getLogger("tidewarden").addHandler(logging.NullHandler())
    task = asyncio.ensure_future(cluster.run(serve))

    def over() -> None:
        if task.cancelling():
            cluster.kill()
        else:
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _print_ready(plan: FolderPlan, *, as_json: bool) -> None:
    nodes = [f"redis://{plan.address(name)}" for name in plan.names]
    if as_json:
        _print(
            {
                "event": "ready",
                "nodes": nodes,
                "http": [f"http://{plan.address(name, 1)}" for name in plan.names],
            }
        )
    else:
        _print(f"READY {' '.join(nodes)}")


def _print(line: str | dict[str, Any]) -> None:
    """Print a line at once; a reader that went away is no reason to stop the cluster."""
    with contextlib.suppress(OSError):
        print(line if isinstance(line, str) else json.dumps(line), flush=True)


def _print_line(event: ShownEvent) -> None:
    _print(f"{event.at} {event.subject:8} {event.text}")


def _print_json(event: ShownEvent) -> None:
    _print({"event": "note", "at": event.at, "subject": event.subject, "text": event.text})
