"""
Keeps what is known of the store that is connected now, which may be another than at the start.
"""

from __future__ import annotations

import logging

from tidewarden.clock import Clock
from tidewarden.errors import ConfigError
from tidewarden.store.client import StoreClient
from tidewarden.store.durability.durability import Durability
from tidewarden.store.preflight import StoreServer, check_store

log = logging.getLogger("tidewarden.daemon")

EMPTY_S = 3600.0  # for so long it is a warning that the store was found empty
EMPTY = (
    "the store that is connected now had nothing of this cluster: it was emptied, or is another"
    " one. Its queues are made again, its tasks and accounts are not: stop the nodes and bring its"
    " data back, or put them anew"
)


class ConnectedStore:
    """
    Asks the store at ``link`` who it is; ``server`` is what it said at the start.

    ``view`` numbers the starts of an embedded one. ``fault``: why the store that is connected now
    should not be one; empty: it may.
    """

    def __init__(
        self, link: StoreClient, cluster: str, clock: Clock, server: StoreServer, view: int
    ) -> None:
        self._link = link
        self._cluster = cluster
        self._clock = clock
        self.server = server
        self.view = view
        self.fault = ""
        self._empty_until = 0.0

    async def check(self, commits: Durability) -> bool:
        """
        Ask again, after a reconnect, and tell ``commits`` what it can do now.

        Returns: whether nothing is wrong with it that has to be looked at again. Raises: what the
        store raises.
        """
        try:
            self.server = await check_store(
                self._link, self._cluster, replicated=self.server.replicated
            )
            self.fault = ""
            if self.server.empty:
                self._empty_until = self._clock.monotonic() + EMPTY_S
                log.critical("%s", EMPTY)
            if self.server.views:
                self.view = await view_of(self._link, self._cluster)
        except ConfigError as error:
            if self.fault != str(error):
                self.fault = str(error)
                log.critical("the store that is connected now should not be one: %s", error)
        return commits.told(self.server) and not self.fault

    def warning(self) -> str:
        """
        Say that the store was found empty within the last hour; empty: it was not.

        Whichever node comes first finds it.
        """
        return EMPTY if self._clock.monotonic() < self._empty_until else ""


async def open_connected_store(
    link: StoreClient, cluster: str, clock: Clock, *, replicated: bool = False
) -> ConnectedStore:
    """
    Ask the store for the first time.

    ``replicated``: it is embedded, and each voting node has one.

    Raises: ConfigError: it may not, for each of these reasons. StoreDown.
    """
    server = await check_store(link, cluster, replicated=replicated)
    view = await view_of(link, cluster) if server.views else 0
    return ConnectedStore(link, cluster, clock, server, view)


async def view_of(link: StoreClient, cluster: str) -> int:
    """Return the number of an embedded store's present start."""
    return int(await link.call("GET", f"{{{cluster}}}:view") or 0)
