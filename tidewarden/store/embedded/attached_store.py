"""Finds the store that runs in a folder, whoever runs it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError

from tidewarden.errors import StoreDown

from . import lineage
from .credentials import DAEMON, StoreCredentials
from .server_folder import ServerFolder

ANSWER_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class RunningStore:
    """Describes the start of a store that runs."""

    incarnation: str
    continues: tuple[str, ...]
    """Earlier starts whose every write it has, newest last."""
    pid: int


class AttachedStore:
    """Is a node's own store, which another process, or this one, runs in ``folder``."""

    def __init__(self, folder: Path, node: str, credentials: StoreCredentials) -> None:
        """
        Args:
            node: whose store it must be.
        """
        files = ServerFolder(folder, "")
        self.folder = files.path
        self.socket_path = files.socket_path
        self._node = node
        self._credentials = credentials

    def client(self) -> Redis:
        """Return a client of one connection that may do everything; its user closes it."""
        return Redis(
            unix_socket_path=str(self.socket_path),
            username=DAEMON,
            password=self._credentials.daemon,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
            # No socket_timeout: redis-py then sends under asyncio.wait_for, which on Python 3.11
            # can lose a cancel.
            socket_timeout=None,
            decode_responses=True,
        )

    async def look(self) -> RunningStore:
        """
        Ask the store which start it is, and who it continues.

        Raises: StoreDown: none answers, it loads, or it is another's; the message says which.
        """
        client = self.client()
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await self.identify(client)
        except BusyLoadingError:
            raise StoreDown(f"the store in {self.folder} loads its data") from None
        except (RedisError, OSError, TimeoutError) as error:
            # redis-py makes a failed connection of it, and keeps it as the cause
            if isinstance(error.__cause__ or error.__context__, AuthenticationError):
                raise StoreDown(
                    f"the store in {self.folder} knows another cluster secret, or runs alone: it"
                    " was not started by `tidewarden store`, `node` or `up` as one of several"
                ) from None
            raise StoreDown(
                f"no store answers in {self.folder}: {str(error) or type(error).__name__}"
            ) from None
        finally:
            with contextlib.suppress(RedisError, OSError):
                await asyncio.shield(client.aclose())

    async def identify(self, client: Redis) -> RunningStore:
        """
        Ask which start it is that ``client``, of :meth:`client`, is connected to.

        Raises:
            StoreDown: it is another node's, or its lineage is not that of the folder (any more).
            RedisError, OSError: it does not answer, or loads its data.
        """
        announced = (await client.config_get("replica-announce-ip"))["replica-announce-ip"] or ""
        node, _, incarnation = announced.rpartition(".")
        if node != self._node or not incarnation:
            raise StoreDown(f"the store in {self.folder} is {announced!r}, not of {self._node}")
        known = await asyncio.to_thread(lineage.read, self.folder)
        if known is None or known.incarnation != incarnation:
            raise StoreDown(f"the store in {self.folder} is about to be started again")
        pid = int((await client.info("server"))["process_id"])
        return RunningStore(incarnation, known.continues, pid)
