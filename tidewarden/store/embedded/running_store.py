"""Runs the store of one node, as its configuration says, as long as it is wanted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from tidewarden.clock import Clock
from tidewarden.config.settings import Config
from tidewarden.duties import Duties

from .credentials import StoreCredentials
from .store_host import StoreHost
from .tunnel import StoreTunnel


@contextlib.asynccontextmanager
async def running_store(
    config: Config,
    credentials: StoreCredentials,
    clock: Clock,
    on_end: Callable[[asyncio.Task[None]], None],
) -> AsyncIterator[StoreHost]:
    """
    Run the store of ``config``'s node, and start it again whenever it ends; stop it at the end.

    Where the node has a certificate, its store is reached through a tunnel, by TLS alone.

    Args:
        on_end: told when it is watched no longer: at the end, or because of a fault of ours.

    Raises:
        FolderInUse: another process runs it.
        ConfigError, StoreDown: it could not be started.
    """
    node = config.node
    host = StoreHost(
        config.store_folder,
        config.store,
        credentials,
        clock,
        node=node.name,
        host=node.host,
        port=0 if node.tls_cert else node.store_port,
    )
    tunnel = StoreTunnel(node, host.folder, host.socket_path, clock) if node.tls_cert else None
    await host.start()
    if tunnel is not None:
        try:
            await tunnel.start()
        except BaseException:
            await host.stop()
            raise
    watch = Duties(clock).begin("store host", host.run)
    watch.add_done_callback(on_end)
    try:
        yield host
    finally:
        failed = watch.done()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await host.stop()
        if tunnel is not None:
            await tunnel.stop()
        if failed:
            watch.result()
