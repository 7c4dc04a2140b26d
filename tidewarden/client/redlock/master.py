"""One master of a Redlock: an independent server, asked for one thing at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import hiredis

from tidewarden.client.address import Address, parse
from tidewarden.client.connection import Broken, ClientConnection, pack
from tidewarden.errors import BadArg, Unreachable


class Master:
    """Is one of the servers; it is connected to when it is asked."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: ClientConnection | None = None
        self._opening = asyncio.Lock()

    async def ask(self, packed: bytes, limit_s: float) -> Any:
        """
        Return the answer to one request, an error as what it is.

        Whatever is sent is sent once.
        """
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._connected(limit_s)
                (reply,) = await connection.request([packed], limit_s)
        except (OSError, TimeoutError, Broken) as error:
            return Unreachable(f"{self.address}: {str(error) or 'no answer'}")
        if isinstance(reply, hiredis.ReplyError):
            return Unreachable(f"{self.address}: {reply}")
        return reply

    async def _connected(self, limit_s: float) -> ClientConnection:
        async with self._opening:
            if self._connection is None or not self._connection.up:
                self._connection = await self._open(limit_s)
            return self._connection

    async def _open(self, limit_s: float) -> ClientConnection:
        address = self.address
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(address), address.host, address.port, ssl=address.context()
        )
        if address.login:
            try:
                (reply,) = await connection.request([pack("AUTH", *address.login)], limit_s)
                if isinstance(reply, hiredis.ReplyError):
                    raise Broken(str(reply), sent=False)
            except BaseException:
                connection.abort("it could not be used")
                raise
        return connection

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


def master_at(url: str) -> Address:
    """
    Return the address of a master, whose port has to be said.

    Raises: BadArg.
    """
    found = parse(url)
    if urlsplit(url).port is None:
        raise BadArg(f"found {found.host} without a port; allowed: redis://HOST:PORT")
    return found
