"""``tidewarden store``."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from tidewarden.errors import ConfigError, StoreDown

from .node import problems_of, set_flags
from .options import REFUSED, AsJson, NodeFile, SetFlags, server_part, stop

if TYPE_CHECKING:
    from tidewarden.config.load import Config
    from tidewarden.store.embedded.credentials import StoreCredentials

log = logging.getLogger("tidewarden.store")

PREPARE_S = 4.0
"""So long, at pace 1, the node may take to hand the primary over before its store stops."""


def store(
    config: NodeFile = None,
    settings: SetFlags = None,
    as_json: AsJson = False,
) -> None:
    """
    Run a node's embedded store by itself, until SIGINT or SIGTERM.

    `tidewarden node` with the same file finds it, and decides whether it is the primary or follows
    one. So a restart or an upgrade of the node leaves the store, and all that it has in memory,
    alone. Without this command the node runs its store itself, and both end together.

    Examples:

    tidewarden store --config /etc/tidewarden/config.toml
    """
    with server_part():
        from tidewarden.config.load import load

    try:
        loaded = load(str(config) if config else None, os.environ, set_flags(settings or []))
        if reason := _unneeded(loaded):
            raise ConfigError([reason])
        _run(loaded)
    except ConfigError as error:
        raise problems_of(error, as_json) from None
    except StoreDown as error:
        raise stop(f"cannot start: {error}", REFUSED) from None


def _unneeded(config: Config) -> str:
    """Say why this node has no store that could run by itself; empty: it has one."""
    if config.store.url != "embedded":
        return "store.url: found the address of a server; allowed for `tidewarden store`: embedded"
    if config.node.role == "worker":
        return (
            "node.role: found 'worker', which has no store; allowed for `tidewarden store`: member"
            " or joining"
        )
    if not config.replicated:
        return (
            "cluster.members: found no other node; allowed for `tidewarden store`: a node with"
            " others, for one alone runs its store itself: tidewarden node"
        )
    return ""


def _run(config: Config) -> None:
    with server_part():
        import uvloop

        from tidewarden import log as logs
        from tidewarden.config.cluster_secret import cluster_secret
        from tidewarden.node.os_process import keep_memory_private
        from tidewarden.store.embedded.credentials import StoreCredentials

    # to standard error alone: DATA/NODE.log is the node's
    logs.setup(config, file=False)
    keep_memory_private()
    uvloop.run(_serve(config, StoreCredentials.of(cluster_secret(config))))


async def _serve(config: Config, credentials: StoreCredentials) -> None:
    import asyncio

    from tidewarden.clock import SystemClock
    from tidewarden.node.os_process import heed_signals, tell_supervisor
    from tidewarden.store.embedded.running_store import running_store

    stopping = asyncio.Event()
    heed_signals(asyncio.get_running_loop(), stopping.set, lambda: None)
    if config.loss_warning:
        log.warning("%s", config.loss_warning)
    async with running_store(config, credentials, SystemClock(), lambda _: stopping.set()) as host:
        log.info("READY: the store of %s (pid %s, %s)", config.node.name, host.pid, host.folder)
        tell_supervisor("READY=1")
        await stopping.wait()
        tell_supervisor("STOPPING=1")
        log.info("going down")
        await host.prepare_stop(PREPARE_S * config.raft.pace)
    log.info("ended")
