"""Runs the store of a node whose cluster's stores replicate, or uses the one that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.store.child_process import FolderInUse
from tidewarden.store.embedded.credentials import StoreCredentials
from tidewarden.store.embedded.running_store import running_store
from tidewarden.store.embedded.server_folder import ServerFolder

log = logging.getLogger("tidewarden.daemon")


@contextlib.asynccontextmanager
async def own_store(
    config: Config, credentials: StoreCredentials, clock: Clock, stopping: asyncio.Event
) -> AsyncIterator[bool]:
    """
    Have this node's own store run, and yield whether it ends with this process.

    Where another process runs it (``tidewarden store``, or ``up``), it goes on when this one ends;
    else it is started here, and stopped last.

    Raises: ConfigError, StoreDown: it could not be started.
    """

    def ended(_: asyncio.Task[None]) -> None:
        stopping.set()

    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(running_store(config, credentials, clock, ended))
            is_ours = True
        except FolderInUse as held:
            log.info("the store is run by another process: %s", held)
            is_ours = False
        yield is_ours


def socket_of(config: Config) -> str:
    """Return the path of the own store's Unix socket."""
    return str(ServerFolder(config.store_folder, "").socket_path)
