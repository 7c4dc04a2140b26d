"""Reads accounts in the node's own copy of the data."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidewarden import errors

from .account_store import AccountReading, AccountStore

log = logging.getLogger("tidewarden.tokens")


class NearAccounts:
    """
    Tells what the node's own copy has of an account, also while the primary does not answer.

    Args:
        copy: reads there alone.
        within: whether the copy is known to lack nothing that is older than so many ms.
    """

    def __init__(self, copy: AccountStore, within: Callable[[int], bool]) -> None:
        self._copy = copy
        self.within = within

    async def last(self, queue: str, name: str) -> AccountReading | None:
        """Read an account from the near copy; None: the copy does not answer, or cannot be read."""
        try:
            return await self._copy.get(queue, name)
        except errors.Error as error:
            log.debug("%s is not to be had near: %s", name, error)
            return None
