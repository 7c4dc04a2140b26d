"""Gives orders to a node's own store."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from tidewarden.config.settings import Store
from tidewarden.raft.store_facts import StoreMember
from tidewarden.store.durability.view_library import LIBRARY, open_command
from tidewarden.store.embedded import damaged_log, lineage
from tidewarden.store.embedded.control_link import ControlLink, ReplyError, refuse_errors
from tidewarden.store.preflight import FORMATS, FSYNC_KEY

from .store_look import NOBODY, StoreLook, look_commands, read_look
from .store_report import DISK_FULL

log = logging.getLogger("tidewarden.cluster")

LET_IN = ("ACL", "SETUSER", "default", "on")
LOOK_S = 0.25
"""A look takes at most so long, at pace 1 or below."""
FREE_BYTES_MIN = 16 * 2**20
"""A store with less room on its disk is about to fail."""
ORDER_S = 2.0
"""
An order may take longer, at pace 1 or below: it waits for the server, which may be in the midst of
a fork.
"""


class LocalStore:
    """
    Looks at one store, and gives it its role.

    Orders go over one connection, one after the other, each behind a look: see
    :class:`ControlLink`. Its callers decide; nothing is decided here.
    """

    def __init__(
        self,
        folder: Path,
        socket_path: Path,
        cluster: str,
        password: str,
        config: Store,
        pace: float,
        library: bytes,
        on_lost: Callable[[], None],
    ) -> None:
        """
        Args:
            folder: the store's own.
            password: of the user ``daemon``.
            library: the scripts of this version, which a primary has before clients come.
            on_lost: called when the store has closed the connection: it ended, as a rule.
        """
        self.folder = folder
        self._cluster = cluster
        self._config, self._library = config, library
        slow = max(1.0, pace)
        self._look_s, self._order_s = LOOK_S * slow, ORDER_S * slow
        self._link = ControlLink(socket_path, password, "control", on_lost)

    def disk_fault(self) -> str:
        """Word that the disk of its folder has hardly any room; empty: it has room."""
        try:
            found = os.statvfs(self.folder)
        except OSError:  # whoever runs the store says so
            return ""
        if found.f_bavail * found.f_frsize >= FREE_BYTES_MIN:
            return ""
        return (
            f"{DISK_FULL}: less than {FREE_BYTES_MIN // 2**20} MiB are free in {self.folder}, or"
            " were while it copied the data; make room there"
        )

    async def look(self) -> StoreLook:
        """Look at the store. Raises: StoreDown: it does not answer, or not in time."""
        return read_look(await self._link.ask(*look_commands(self._cluster), limit_s=self._look_s))

    def continues(self, incarnation: str) -> tuple[str, ...]:
        """
        Return the earlier starts, the newest last, whose every write the start ``incarnation`` has.
        """
        known = lineage.read(self.folder)
        return known.continues if known is not None and known.incarnation == incarnation else ()

    async def promote(self, view: int, in_sync: str, member: StoreMember) -> None:
        """
        Make it the primary of ``view``, and let clients in.

        The scripts are there before any client comes: each link of each node would send them.
        Nobody needs them, so a store that refuses them is opened all the same.

        Raises: StoreDown: it refused, or did not answer; look again before anything else.
        """
        tag = f"{{{self._cluster}}}"
        *answers, loaded = await self._link.ask(
            ("REPLICAOF", "NO", "ONE"),
            ("CONFIG", "SET", "min-replicas-to-write", 0, "maxmemory", 0),
            # those of former versions would stay for ever
            ("FUNCTION", "FLUSH"),
            ("FUNCTION", "LOAD", LIBRARY),
            open_command(self._cluster, view, 1, in_sync, ".".join(member)),
            ("SET", f"{tag}:format", FORMATS[-1]),
            ("SET", f"{tag}{FSYNC_KEY}", self._config.fsync),
            ("FUNCTION", "LOAD", self._library),
            limit_s=self._order_s,
        )
        refuse_errors(answers)
        if isinstance(loaded, ReplyError):
            log.warning("the store takes no script library, so scripts cost it more: %s", loaded)
        await self._order(("CONFIG", "SET", "maxmemory", self._config.maxmemory_bytes), LET_IN)

    async def let_in(self) -> None:
        """Let clients in. Raises: StoreDown."""
        await self._order(LET_IN)

    async def demote(self) -> None:
        """
        Demote the store to a replica of nobody, and end its clients' connections.

        Raises: StoreDown.
        """
        await self._order(
            ("REPLICAOF", *NOBODY),
            ("ACL", "SETUSER", "default", "off"),
            ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
        )

    async def detach(self) -> None:
        """Have the store follow nobody. Raises: StoreDown."""
        await self._order(("REPLICAOF", *NOBODY))

    async def follow(self, host: str, port: int) -> None:
        """
        Have it follow the store at that address, whose data may replace its own.

        Raises: StoreDown; OSError: the folder cannot be written, so nothing was ordered.
        """
        lineage.mark_syncing(self.folder)
        await self._order(("REPLICAOF", host, port))

    def became_whole(self) -> None:
        """Note that its data are all there again."""
        lineage.clear_syncing(self.folder)

    def was_syncing(self) -> bool:
        """
        Return whether the store was about to replace its data since they were noted to be whole.
        """
        return (self.folder / lineage.MARKER).exists()

    def log_damage(self) -> str:
        """Return why the store cannot read its log; empty: it can, as far as is known."""
        file = damaged_log.told(self.folder)
        return f"the store cannot read its log: {file} is damaged" if file else ""

    async def rewrite_log(self) -> None:
        """Have the store begin another log, because a full disk may have left zeros in this one."""
        # refused where one is under way; that one began while writes failed, and does not count
        await self._link.ask(("BGREWRITEAOF",), limit_s=self._order_s)

    def give_up_log(self) -> bool:
        """Allow a log that cannot be read to be set aside; return whether there is one."""
        return damaged_log.give_up(self.folder)

    @property
    def connected(self) -> bool:
        """Return whether there is a connection: a store that ended has closed it."""
        return self._link.connected

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    async def _order(self, *commands: tuple[str | int, ...]) -> None:
        refuse_errors(await self._link.ask(*commands, limit_s=self._order_s))


def format_fault(data_format: str, folder: Path) -> str:
    """Return why data of that format cannot be served; empty: they can."""
    if data_format in ("", *FORMATS):
        return ""
    return (
        f"data in {folder}: its format is {data_format}, this version reads"
        f" {' and '.join(FORMATS)}; use the version that wrote it"
    )
