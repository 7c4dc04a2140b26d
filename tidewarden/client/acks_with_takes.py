"""Sends a worker's acks and failures in one write with its next take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from .client import AsyncClient
from .connection import Arg, Broken, Replies, pack
from .failover import FailoverConnection, PendingCall

Command = tuple[Arg, ...]


class AcksWithTakes:
    """
    Sends a worker's acks, failures and burials.

    Each goes out with the next take if one is about to be sent, else by itself.

    On the take's connection they stand before it, for what follows a take that waits would wait,
    too. There they are sent once: what broke, or was refused for a passing reason, is repeated on
    the client's own line.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._along: list[tuple[Command, asyncio.Future[asyncio.Future[Replies] | None]]] = []
        self._gathers = False

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Mark that the worker waits for something to be settled, and will take at once then."""
        self._gathers = True
        try:
            yield
        finally:
            self._gathers = False

    def send_with(self, line: FailoverConnection) -> None:
        """Send what waits on this line, in this turn, before a take."""
        along, self._along = self._along, []
        for command, sent in along:
            if not sent.done():
                sent.set_result(line.post(command))

    def send_alone(self) -> None:
        """Send what waits without a take."""
        along, self._along = self._along, []
        for _, sent in along:
            if not sent.done():
                sent.set_result(None)

    async def send(self, command: Command) -> tuple[list[Any], bool]:
        """
        Settle one task and return the answer, and whether it was sent twice.

        It is repeated as ``FailoverConnection.run`` repeats what may be repeated. Raises:
        Unreachable.
        """
        repeated = False
        if self._gathers:
            sent: asyncio.Future[asyncio.Future[Replies] | None] = (
                asyncio.get_running_loop().create_future()
            )
            self._along.append((command, sent))
            answer = await asyncio.shield(sent)  # who is cancelled now has it sent all the same
            if answer is not None:
                asked = PendingCall([pack(*command)], again=True)
                try:
                    if asked.answered(await answer) is None:
                        return asked.answers, False
                except Broken as broken:
                    asked.repeated = broken.sent
                repeated = asked.repeated
        found, twice = await self._client.line.run([command], again=True)
        return found, repeated or twice
