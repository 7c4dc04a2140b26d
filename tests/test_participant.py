"""What every process of a node has: what it does when the store that is connected may be another."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidewarden import participant as module
from tidewarden.clock import SystemClock
from tidewarden.config import load
from tidewarden.errors import Error, Full, StoreDown
from tidewarden.participant import Participant


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch) -> Participant:
    """A process with ears that are connected; what becomes of a comparison is the test's to say."""
    monkeypatch.setattr(module, "COMPARE_S", 0.01)
    made: Any = Participant(load(None, {}, {}), SystemClock(), "n0")
    made.ears = SimpleNamespace(up=True)
    made.queues = SimpleNamespace(wake_all=lambda: None)
    return made


async def compared(one: Participant) -> None:
    async with asyncio.timeout(30):
        while one._comparing is not None:
            await asyncio.sleep(0.005)


async def test_a_server_that_takes_over_while_the_last_one_is_compared_is_compared_too(one: Any) -> None:
    looks = 0

    async def recall() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            one._missed()

    one.queues.recall = recall
    one._missed()
    await compared(one)
    assert looks == 2


@pytest.mark.parametrize("error", [StoreDown("away"), Full("the store's memory is full")])
async def test_a_comparison_that_was_refused_is_made_again(
    one: Any, error: Error, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Error | None] = [error, error, None]

    async def recall() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    one.queues.recall = recall
    one._missed()
    await compared(one)
    assert outcomes == []
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == (0 if isinstance(error, StoreDown) else 1)
