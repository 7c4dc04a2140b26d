"""Puts the event loop's questions to Raft's thread, and takes its answers, also late ones."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from tidewarden.errors import NoLeader, Timeout

from . import pysync
from .ticker import Ticker
from .voter import Voter


class Proposals:
    """
    Puts questions to the thread, each for at most ``limit_s`` seconds.

    An answer that comes later finds no caller: questions are numbered, numbers not used again.
    """

    def __init__(self, ticker: Ticker, limit_s: float) -> None:
        self._ticker = ticker
        self._limit_s = limit_s
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._number = 0

    async def propose(self, propose: Callable[..., None]) -> Any:
        """
        Call ``propose(callback=…)`` and await what was committed.

        Raises: NoLeader: not committed, as far as is known. Timeout: not in time; it may still be.
        """
        self._number += 1
        number = self._number
        future = self._open[number] = asyncio.get_running_loop().create_future()

        def answered(value: Any, reason: int) -> None:
            self._ticker.post(self._answered, number, value, reason)

        try:
            propose(callback=answered)
            async with asyncio.timeout(self._limit_s):
                return await future
        except TimeoutError:
            raise Timeout(f"Not committed within {self._limit_s:g} s; it may still be.") from None
        finally:
            del self._open[number]

    def _answered(self, number: int, value: Any, reason: int) -> None:
        future = self._open.get(number)
        if future is None or future.done():
            return
        if reason == pysync.SUCCESS:
            future.set_result(value)
        else:
            why = pysync.REASONS.get(reason, f"reason {reason}")
            future.set_exception(NoLeader(f"Not committed, as far as is known: {why}."))

    def end(self) -> None:
        """Answer all that wait: the thread has ended, and nothing else will."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(NoLeader("Not committed, as far as is known: Raft stopped."))

    async def ask(self, question: Callable[[Voter], int]) -> int:
        """
        Run ``question`` in the thread and await its answer.

        Raises: Timeout: the thread did not answer in time.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        settle = functools.partial(_settle, future)
        ticker = self._ticker
        ticker.ask(lambda voter: ticker.post(settle, question(voter)))
        try:
            async with asyncio.timeout(self._limit_s):
                return await future
        except TimeoutError:
            raise Timeout(f"Raft's thread did not answer within {self._limit_s:g} s.") from None


def _settle(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)
