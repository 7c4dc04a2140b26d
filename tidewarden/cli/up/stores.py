"""
The stores of ``tidewarden up``: one for all nodes, or one for each, which replicate.

Each node has its own from three nodes on, where the loss of one is survived; and wherever a folder
has such stores already. Then node ``nX``'s lies in ``DATA/nX/store``, as it would on a host of its
own, and ``DATA/store`` is that of all nodes. The nodes decide which store is the primary; here they
are started, and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config.key_file import sync_folder
from tidewarden.config.settings import STORE_ABOVE
from tidewarden.errors import ConfigError
from tidewarden.store.child_process import FolderLock
from tidewarden.store.embedded.credentials import StoreCredentials
from tidewarden.store.embedded.server import EmbeddedStore
from tidewarden.store.embedded.store_host import StoreHost

from . import resize
from .data_folder import FolderPlan
from .supervise import Tell


def check_stores(plan: FolderPlan) -> None:
    """
    Check that the stores that are wanted can be had from those that the folder has.

    Raises: ConfigError: there are stores of several nodes and one is wanted, or data in two places.
    """
    if not plan.embedded:
        return
    each = [path.parent.name for path in plan.own_store_folders()]
    if plan.one_store and each:
        raise ConfigError(
            [
                f"--stores 1: {plan.data_dir} has a store of each node ({', '.join(each)}), and one"
                " cannot take their place; leave --stores out, or copy the data into a new folder:"
                " tidewarden cluster backup FILE while it runs, then tidewarden cluster restore"
                " FILE --data-dir NEW, then up --stores 1 --data-dir NEW"
            ]
        )
    if not plan.store_each or not plan.has_common_data:
        return
    if each:
        raise ConfigError(
            [
                f"{plan.common_store} has data, and so has {plan.own_store(each[0])}: as it seems"
                " an earlier version, or --stores 1, ran on a folder whose nodes have their own"
                " stores. Move the one that you do not want out of the data folder"
            ]
        )
    if gone := resize.surplus(plan):
        total = plan.node_total + len(gone)
        raise ConfigError(
            [
                f"--nodes {plan.node_total}: {plan.common_store} is to become a store of each node,"
                f" for which all {total} nodes are needed once; start it with --nodes {total}"
                " first"
            ]
        )


class LocalStores:
    """Runs the stores of one ``up``."""

    def __init__(self, plan: FolderPlan, clock: Clock, tell: Tell) -> None:
        self.one: EmbeddedStore | None = None
        """The store of all nodes, if they share one that runs here."""
        self.hosts: dict[str, StoreHost] = {}
        """Each node's own, by its name, if they have such."""
        self._plan = plan
        self._clock = clock
        self._tell = tell

    async def start(self) -> str:
        """
        Start all of them. Returns: what nodes are given as ``store.url``.

        Raises: ConfigError, StoreDown: one did not start.
        """
        plan = self._plan
        if not plan.embedded:
            return plan.config.store.url
        credentials = StoreCredentials.of(plan.secret("cluster.key"))
        if plan.store_each:
            await self._move_common_store()
            await self._start_each(credentials)
            return "embedded"
        self.one = EmbeddedStore(
            plan.common_store,
            plan.config.store,
            plan.config.cluster.name,
            credentials.client,
            self._clock,
            on_event=lambda text: self._tell("store", text.removeprefix("store ")),
        )
        url = await self.one.start()
        self._tell("store", f"serves, pid {self.one.pid}, view {self.one.view}")
        return url

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """Return what has to run so that a store that ends is started again."""
        every = (self.one, *self.hosts.values())
        return [store.run() for store in every if store is not None]

    def pid(self, name: str) -> int | None:
        """Return the process id of a node's own store; None: it has none, or it does not run."""
        host = self.hosts.get(name)
        return host.pid if host else None

    async def stop(self) -> None:
        """Stop all of them at once; cancel the watches first."""
        if self.one is not None:
            self._tell("up", "stopping the store")
            await self.one.stop()
        if self.hosts:
            self._tell("up", "stopping the stores")
            await asyncio.gather(*(host.stop() for host in self.hosts.values()))

    def kill(self) -> None:
        """End all of them at once."""
        for host in self.hosts.values():
            host.kill()
        if self.one is not None and self.one.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.one.pid, signal.SIGKILL)

    async def _start_each(self, credentials: StoreCredentials) -> None:
        plan = self._plan
        for name in plan.names:
            self.hosts[name] = StoreHost(
                plan.own_store(name),
                plan.config.store,
                credentials,
                self._clock,
                node=name,
                host=plan.config.node.host,
                port=plan.base_port(name) + STORE_ABOVE,
                on_event=lambda text, name=name: self._tell(name, text),  # type: ignore[misc]
            )
        # all of them have started, or are gone, before anything is stopped
        starts = (host.start() for host in self.hosts.values())
        for fault in await asyncio.gather(*starts, return_exceptions=True):
            if fault is not None:
                raise fault
        for name, host in self.hosts.items():
            self._tell(name, f"store runs, pid {host.pid}")

    async def _move_common_store(self) -> None:
        """
        Make the store that all nodes shared the first node's own, whose copy the others then get.

        One rename: killed before it, the next start does it; after it, there is nothing left to do.
        """
        plan = self._plan
        common, own = plan.common_store, plan.own_store(plan.names[0])
        if not plan.has_common_data:
            return
        lock = FolderLock(common)
        await lock.acquire(self._clock)  # a server that was left from the last run writes there
        try:
            own.parent.mkdir(mode=0o700, exist_ok=True)
            common.rename(own)
            sync_folder(own.parent)
            sync_folder(plan.data_dir)
        except OSError as error:
            raise ConfigError(
                [f"{common} could not be moved to {own}: {error.strerror or error}"]
            ) from None
        finally:
            lock.release()
        self._tell(
            "up",
            f"the store of all nodes, {common}, is now that of {plan.names[0]}, {own}; the other"
            " nodes' stores copy its data",
        )
