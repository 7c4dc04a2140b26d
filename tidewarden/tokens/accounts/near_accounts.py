"""Reads accounts in the node's own copy of the data."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidewarden import errors
from tidewarden.queue.reads.near_reads import Mark, NearReads

from .account_store import AccountReading, AccountStore

log = logging.getLogger("tidewarden.tokens")

Answer = TypeVar("Answer")


class NearAccounts:
    """
    Tells what the node's own copy has of an account, also while the primary does not answer.

    Args:
        copy: reads there alone.
        reads: decides what that copy may answer.
    """

    def __init__(self, copy: AccountStore, reads: NearReads) -> None:
        self._copy = copy
        self._reads = reads

    def within(self, ms: int) -> bool:
        """
        Return whether the copy is known to have everything that is older than so many milliseconds.
        """
        return self._reads.age.within(ms)

    async def reaches_majority(self) -> bool:
        """See :meth:`tidewarden.queue.reads.near_reads.NearReads.reaches_majority`."""
        return await self._reads.reaches_majority()

    async def answered(
        self,
        primary: AccountStore,
        read: Callable[[AccountStore, Mark], Awaitable[Answer]],
    ) -> Answer:
        """
        Have ``read`` ask the primary, or the near copy, whose answers get the given mark.

        See :meth:`tidewarden.queue.reads.near_reads.NearReads.answered`.
        """

        async def either(mark: Mark | None) -> Answer:
            return await (read(primary, {}) if mark is None else read(self._copy, mark))

        return await self._reads.answered(either, marks=True)

    async def last(self, queue: str, name: str) -> AccountReading | None:
        """Read an account from the near copy; None: the copy does not answer, or cannot be read."""
        try:
            return await self._copy.get(queue, name)
        except errors.Error as error:
            log.debug("%s is not to be had near: %s", name, error)
            return None
